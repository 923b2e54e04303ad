"""Process groups of torch whose ranks were started by mpiexec."""

import pytest
from mpiexec import MPICH

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("mpi", [MPICH], indirect=True, ids=["mpich"])  # nothing depends on which it is
def test_communicator_of_a_process_group_is_one_of_mpi_in_the_order_of_the_group(mpi, tmp_path):
    outcomes = mpi.run(
        f"""
        def main(rank, size):
            import torch.distributed as dist
            import sparsewire.torch as swt

            store = dist.FileStore({str(tmp_path / "store")!r}, size)
            dist.init_process_group("gloo", store=store, rank=size - 1 - rank, world_size=size)
            pair = dist.new_group([0, 2])
            with swt.communicator(timeout=30) as comm:
                found = [comm._driver.kind[0], comm.rank, int(comm.allreduce(np.array([2**rank]))[0])]
            if rank != 1:
                with swt.communicator(pair, timeout=30) as comm:
                    found += [comm._driver.kind[0], comm.rank, int(comm.allreduce(np.array([2**rank]))[0])]
            dist.destroy_process_group()
            return found
        """,
        3,
    )
    assert [outcome.get("result", outcome) for outcome in outcomes] == [
        ["mpi", 2, 7, "mpi", 1, 5],
        ["mpi", 1, 7],
        ["mpi", 0, 7, "mpi", 0, 5],
    ]
