"""Under torchrun, ranks find each other by way of its store: no secret and no free port needed."""

import json
import os
import subprocess
import sys
import warnings

import pytest

from sparsewire.communicator import join
from sparsewire.errors import InputError

pytestmark = pytest.mark.torch

SECRET = "a secret for tests"

SCRIPT = """
import pathlib
import sys

import numpy as np
import sparsewire as sw

for attempt in range(2):  # a second communicator must not find the first one's address
    with sw.init(timeout=60) as comm:
        total = comm.allreduce(np.array([0.0, 2.0 ** comm.rank], dtype="float32"))
        assert total.tolist() == [0.0, 2.0 ** comm.size - 1], total
        comm.barrier()
pathlib.Path(sys.argv[1], f"summed-{comm.rank}").touch()
"""


@pytest.mark.parametrize("variables", [{}, {"SPARSEWIRE_SECRET": SECRET}], ids=["store", "secret-given"])
def test_init_works_under_torchrun(tmp_path, variables):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=3",
        str(script),
        str(tmp_path),
    ]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("summed-*"))) == 3


@pytest.fixture
def store(monkeypatch):
    """A store as torchrun's, at which rank 0 of two is about to begin; all interfaces stand for a network."""
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
    for name, value in {
        "MASTER_ADDR": "0.0.0.0",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPARSEWIRE_SECRET", raising=False)
    monkeypatch.setattr(join, "_inits", iter([0] * 9))
    return store


def test_secret_that_crosses_a_network_in_the_clear_is_a_warning_that_says_so(store):
    with pytest.warns(UserWarning, match="in the clear.*Set SPARSEWIRE_SECRET"):
        listener, secret = join._from_torchrun(0, 10)
    listener.close()
    assert json.loads(store.get("sparsewire/0/0/job"))[2] == secret


def test_secret_on_one_host_is_no_warning(store, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listener, _ = join._from_torchrun(0, 10)
    listener.close()


def test_secret_that_is_given_does_not_go_through_the_store(store, monkeypatch):
    monkeypatch.setenv("SPARSEWIRE_SECRET", SECRET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listener, secret = join._from_torchrun(0, 10)
    listener.close()
    assert secret == SECRET
    assert SECRET.encode() not in store.get("sparsewire/0/0/job")
    assert join._from_torchrun(1, 10)[1] == SECRET
    monkeypatch.delenv("SPARSEWIRE_SECRET")
    with pytest.raises(InputError, match="rank 0 has a SPARSEWIRE_SECRET and rank 1 has none"):
        join._from_torchrun(1, 10)
