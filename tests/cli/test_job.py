"""``run_job``: the same program as ranks of either driver."""

from __future__ import annotations

import pytest

from sparsewire.launch.job import run_job

SUM_OF_POWERS = """
import sys
import numpy as np
import sparsewire as sw
with sw.init(timeout=60) as comm:
    total = comm.allreduce(np.array([0.0, 2.0**comm.rank]))
    sys.stdout.write(f"{comm.rank} {total.tolist()}\\n")
"""
RANK_1_RAISES = """
import time
import sparsewire as sw
comm = sw.init(timeout=60)
if comm.rank == 1:
    raise ValueError("no more")
time.sleep(600)
"""


def run(program, size, driver):
    heard: list[str] = []
    outcome = run_job(
        ["-c", program], size, driver=driver, on_line=lambda rank, stream, line: heard.append(line.decode())
    )
    return outcome, heard


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_ranks_find_each_other(driver):
    outcome, heard = run(SUM_OF_POWERS, 3, driver)
    assert outcome.code == 0, heard
    assert sorted(heard) == [f"{rank} [0.0, 7.0]" for rank in range(3)]


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_a_rank_that_raises_ends_the_others_too(driver):
    outcome, heard = run(RANK_1_RAISES, 3, driver)
    assert outcome.code == 1, heard
    assert any("no more" in line for line in heard)
