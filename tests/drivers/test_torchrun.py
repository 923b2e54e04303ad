"""Under torchrun, ranks find each other by way of its store: no secret and no free port needed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

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


def test_init_works_under_torchrun(tmp_path):
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("summed-*"))) == 3
