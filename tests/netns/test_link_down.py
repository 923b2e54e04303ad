"""A link that goes down while nobody says goodbye: everybody notices within the time-out."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_emulated_network import needs_root

from sparsewire.launch.emulation import emulated_network
from sparsewire.launch.local import launch

pytestmark = needs_root

TIMEOUT_S = 4.0
PATIENCE_S = 4.0  # of the test, on a machine that is busy

# Two workers and an aggregator.  The last word says what the workers do when the link goes down.
PROGRAM = """
import os, sys, threading, time
import numpy as np, sparsewire as sw
down, timeout, how = sys.argv[1], float(sys.argv[2]), sys.argv[3]
watchdog = threading.Timer(30, os._exit, [9])
watchdog.start()
comm = sw.init(aggregators=1, timeout=timeout)
try:
    if comm.is_aggregator:
        comm.serve()
    else:
        x = np.ones(200_000, "float32")
        comm.allreduce(x, algorithm="omnireduce")
        comm.barrier()
        if comm.rank == 0:
            print("ready", flush=True)
        while not os.path.exists(down):
            if how == "busy":
                comm.allreduce(x, algorithm="omnireduce")
            else:
                time.sleep(0.01)
        comm.allreduce(x, algorithm="omnireduce")
    said = "ended"
except sw.SparsewireError as error:
    said = f"{type(error).__name__}: {error}"
seconds = time.time() - os.stat(down).st_mtime
print(f"rank {comm.rank} after {seconds:.1f} s: {said}", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("how", ["idle", "busy"])
@pytest.mark.parametrize("place", [0, 2], ids=["worker", "aggregator"])
def test_everybody_notices_within_the_time_out_that_a_link_is_down(place: int, how: str, tmp_path: Path):
    down, heard = tmp_path / "down", []
    with emulated_network(3, 10**9) as network:
        switch = network.namespaces[0].removesuffix("-0") + "-switch"

        def listen(rank: int, stream: str, line: bytes) -> None:
            heard.append(line.decode())
            if line == b"ready":
                time.sleep(0.3)
                down.touch()
                subprocess.check_call(["ip", "-n", switch, "link", "set", f"port{place}", "down"])

        outcome = launch(
            [sys.executable, "-c", PROGRAM, str(down), str(TIMEOUT_S), how],
            3,
            master_addr=network.hosts[0].address,
            namespaces=network.namespaces,
            on_line=listen,
        )
    assert outcome.code == 0, heard
    ends = sorted(line for line in heard if line != "ready")
    assert len(ends) == 3, heard
    for rank, line in enumerate(ends):
        seconds = float(re.findall(rf"^rank {rank} after (\S+) s", line)[0])
        assert seconds < TIMEOUT_S + PATIENCE_S, heard
        if rank < 2:
            assert re.search("CollectiveTimeout|PeerLostError", line), heard
