"""Each test that takes the fixture ``mpi`` runs under both MPIs."""

import pytest
from mpiexec import MPICH, OPEN_MPI, Mpi


@pytest.fixture(params=[MPICH, OPEN_MPI], ids=lambda mpi: mpi.name)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.param
    if not found.python.exists():
        pytest.skip(f"no {found.name} in this environment; `make test` installs it")
    return found
