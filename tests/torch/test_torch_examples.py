"""The examples for PyTorch on two ranks, started as by torchrun: what they say of themselves holds."""

import multiprocessing
import os
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher import LaunchConfig, elastic_launch

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples/pytorch"
TESTED = {"ddp", "elastic", "embeddings", "with_accelerate", "with_lightning"}


def play(example, folder):
    """In the process of a rank."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever the name of this machine resolves to
    os.chdir(folder)
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")


@pytest.fixture
def torchrun(tmp_path, monkeypatch):
    """Run an example by torchrun's agent; what rank 0 has printed in its last attempt.

    The agent is in this process, and ranks are forked when torch is loaded: what a command and its processes
    would import takes longer than the examples.
    """
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1")  # the others are for pytest to handle
    multiprocessing.set_forkserver_preload(["torch._dynamo", "sparsewire.torch"])  # DDP imports the first

    def run(example, max_restarts=0):
        logs = tmp_path / "logs"
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=2,
            run_id=example,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=max_restarts,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.OUT),
        )
        elastic_launch(config, play)(example, tmp_path)
        return max(logs.rglob("0/stdout.log"), key=os.path.getmtime).read_text()

    return run


def test_ddp_learns_and_goes_on_from_its_checkpoint(torchrun):
    printed = torchrun("ddp") + torchrun("ddp")
    steps = re.findall(r"step (\d+): loss ([\d.]+), (\d+) times fewer", printed)
    assert [int(step) for step, _, _ in steps] == [30, 60, 90, 120]
    assert float(steps[-1][1]) < float(steps[0][1])
    assert all(int(fewer) > 20 for _, _, fewer in steps)


def test_embeddings_equal_dense_ones(torchrun):
    lines = torchrun("embeddings").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.endswith("by at most 0e+00")


def test_elastic_job_ends_with_the_same_bits(torchrun):
    assert torchrun("elastic", max_restarts=1).splitlines() == [
        "restart 1 went on from step 10",
        "as without the failure, same bits: True",
    ]


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_trainer_goes_on_from_its_checkpoint(torchrun, package):
    pytest.importorskip(package, reason=f"{package} is not installed")
    *_, last = torchrun(f"with_{package}").splitlines()
    assert re.fullmatch(r"\d\d times fewer bytes sent; from the checkpoint on, same bits: True", last)


def test_every_example_has_its_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
