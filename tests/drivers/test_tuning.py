"""Figures on real ranks: all go by rank 0's, and what tuning found is found again."""

from dataclasses import astuple

import jobs
import pytest

from sparsewire.choosing import calibration
from sparsewire.choosing.calibration import Calibration, Fingerprint
from sparsewire.cost import CostFigures

OF_RANK_0 = CostFigures(2.0**-10, 2.0**20, 2.0**-12, 2.0**-20, 2.0**-22, 0.5, 2.0**-13)
OF_RANK_1 = CostFigures(2.0**-3, 2.0**30, 2.0**-2, 2.0**-30, 2.0**-31, 0.25, 2.0**-3)

FINGERPRINT = """
from dataclasses import astuple

def main(rank, size):
    with sw.init(timeout=30) as comm:
        comm.barrier()
        return astuple(comm.fingerprint) if rank == 0 else None
"""
FIGURES = """
from dataclasses import astuple

def main(rank, size):
    with sw.init(timeout=30) as comm:
        x = np.zeros(1000, np.float32)
        x[rank] = 1
        algorithms = []
        for call in range(3):
            total = comm.allreduce(x, name="layer")
            algorithms.append(comm.last.algorithm)
        comm.barrier()
        return [total.sum(dtype=float), algorithms, astuple(comm.network)]
"""
TUNE = """
from dataclasses import astuple
from sparsewire.choosing.tune import run_tune

def main(rank, size):
    with sw.init(timeout=60) as comm:
        text = run_tune(comm, budget_s=0.1)
        comm.barrier()
        return [text, astuple(comm.network)]
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def results(outcomes):
    assert not [o for o in outcomes if "error" in o]
    return [outcome["result"] for outcome in outcomes]


def test_ranks_with_different_figures_all_go_by_those_of_rank_0(tmp_path, monkeypatch):
    fingerprint = Fingerprint(*results(jobs.run(FINGERPRINT, 2))[0])
    for name, network in [("zero", OF_RANK_0), ("one", OF_RANK_1)]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        calibration.save(fingerprint, Calibration(network, 1.0))
    caches = {rank: {"XDG_CACHE_HOME": str(tmp_path / name)} for rank, name in enumerate(["zero", "one"])}
    (sum0, names0, network0), (sum1, names1, network1) = results(jobs.run(FIGURES, 2, environments=caches))
    assert (sum0, sum1) == (2, 2)
    assert names0 == names1
    assert network0 == network1 == list(astuple(OF_RANK_0))


def test_a_corrupt_cache_stops_nobody(tmp_path):
    folder = tmp_path / "corrupt" / "sparsewire"
    folder.mkdir(parents=True)
    (folder / "tuning.json").write_text("{")
    caches = {rank: {"XDG_CACHE_HOME": str(folder.parent)} for rank in range(3)}
    outcomes = results(jobs.run(FIGURES, 3, environments=caches))
    assert [outcome[0] for outcome in outcomes] == [3, 3, 3]
    assert outcomes[0][1:] == outcomes[1][1:] == outcomes[2][1:]


def test_what_was_tuned_is_used_and_found_by_the_next_job():
    (text, tuned0), (nothing, tuned1) = results(jobs.run(TUNE, 2))
    assert nothing == ""
    assert "bandwidth" in text
    assert text.endswith("tuning.json")
    assert tuned0 == tuned1
    assert 0 < CostFigures(*tuned0).seconds_per_index < 1e-6
    assert tuned0 not in [list(astuple(assumed)) for assumed in calibration.ASSUMED.values()]
    assert [network for _, _, network in results(jobs.run(FIGURES, 2))] == [tuned0, tuned0]
