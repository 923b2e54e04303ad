"""The emulated network: no faster than its rate, and removed when it should be."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import PATIENCE_S, assert_all_gone, next_line, started
from sparsewire.errors import InputError, SparsewireError
from sparsewire.launch import emulation as module
from sparsewire.launch.emulation import (
    EmulationError,
    emulated_network,
    parse_rate,
    remove_leftovers,
    require_emulation,
)
from sparsewire.launch.local import launch

needs_root = [
    pytest.mark.netns,
    pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are a Linux feature"),
    pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0, reason="network namespaces need root"
    ),
]

COMMAND = [sys.executable, "-m", "sparsewire"]
# Both ends of a link let their burst pass at once; at 100mbit it would have taken so long.
BURST_S = 2 * module.SMALLEST_BURST_BYTES * 8 / 10**8

# All algorithms use the links in the same way, so a dense and a sparse one are enough.
SOME = "--algorithms dense_ring,split_allgather"

# Rank 0 receives so many bytes from every other rank at once, and prints how long that took.
RECEIVE_FROM_ALL = """
import os, socket, sys, threading, time
from sparsewire.launch.emulation import interface_bytes
rank, size, payload = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
address = (os.environ["MASTER_ADDR"], 5000)
if rank == 0:
    with socket.create_server(address) as server:
        peers = [server.accept()[0] for _ in range(size - 1)]
    start = time.perf_counter()
    for peer in peers:
        peer.sendall(b"go")
    def drain(peer):
        while peer.recv(1 << 20):
            pass
    threads = [threading.Thread(target=drain, args=(peer,)) for peer in peers]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(time.perf_counter() - start, interface_bytes()[1])
    for peer in peers:
        peer.close()
else:
    while True:
        try:
            link = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    link.recv(2)
    link.sendall(bytes(payload))
    link.close()
"""

HOLD_A_NETWORK = """
import time
from sparsewire.launch.emulation import emulated_network
with emulated_network(2, 10**9) as network:
    print(*network.namespaces, flush=True)
    time.sleep(600)
"""


def namespaces() -> set[str]:
    lines = subprocess.check_output(["ip", "netns", "list"], text=True).splitlines()
    return {line.split()[0] for line in lines}


def mine() -> set[str]:
    return {name for name in namespaces() if name.startswith(f"sw{os.getpid()}-")}


@contextmanager
def endless_benchmark(driver: str) -> Iterator[tuple[subprocess.Popen[str], set[str]]]:
    """A benchmark in the middle of its work, and the namespaces that it uses."""
    words = "bench allreduce -n 2 --size 1k --network 1gbit --no-peers --algorithms allgather_sum"
    words += f" --driver {driver} --iterations 1000000"
    with started([*COMMAND, *shlex.split(words)]) as benchmark:
        assert "measuring" in next_line(benchmark, "stderr")
        used = {name for name in namespaces() if name.startswith(f"sw{benchmark.pid}-")}
        assert len(used) == 3
        yield benchmark, used


@pytest.mark.parametrize(
    ("text", "bits"),
    [("1gbit", 10**9), ("100mbit", 10**8), ("2.5gbit", 2_500_000_000), ("500 KBIT", 500_000), ("64bit", 64)],
)
def test_rate_is_parsed_as_tc_does(text, bits):
    assert parse_rate(text) == bits


@pytest.mark.parametrize("text", ["", "fast", "1", "gbit", "-1gbit", "1tbit", "0gbit", "1gb"])
def test_rate_that_is_no_rate_is_refused(text):
    with pytest.raises(InputError, match="rate"):
        parse_rate(text)


def test_what_is_missing_is_said_with_a_way_out(monkeypatch):
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(EmulationError, match=r"Linux.*leave out --network"):
        require_emulation()
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationError, match=r"root.*sudo"):
        require_emulation()
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    monkeypatch.setattr(module.shutil, "which", lambda tool: None)
    with pytest.raises(EmulationError, match=r"'ip'.*iproute2"):
        require_emulation()
    assert issubclass(EmulationError, SparsewireError)


def rows_of(words: str, folder: Path) -> dict[str, Any]:
    """What `bench allreduce` measured, by algorithm."""
    return {row["algorithm"]: row for row in measured(words, folder)}


def measured(words: str, folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.json"
    done = subprocess.run(
        [*COMMAND, "bench", "allreduce", *shlex.split(words), "--json", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


class TestWithRoot:
    pytestmark = needs_root

    @pytest.mark.parametrize("size", [2, 3])
    def test_link_is_not_faster_than_its_rate(self, size):
        rate, payload = 50_000_000, 1_000_000
        heard: list[bytes] = []
        with emulated_network(size, rate) as network:
            outcome = launch(
                [sys.executable, "-c", RECEIVE_FROM_ALL, str(payload)],
                size,
                master_addr=network.hosts[0].address,
                namespaces=network.namespaces,
                on_line=lambda rank, stream, line: heard.append(line),
            )
        assert outcome.code == 0, heard
        seconds, received = (float(word) for word in heard[0].split())
        moved = (size - 1) * payload
        # With several senders only the receiver's end of its link limits them.
        assert seconds >= (moved - 2 * module.SMALLEST_BURST_BYTES) * 8 / rate
        assert moved < received < 1.1 * moved

    def test_ranks_reach_each_other_and_not_the_host(self):
        with emulated_network(3, 10**9) as network:
            assert [host.address for host in network.hosts] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
            routes = subprocess.check_output(["ip", "-n", network.namespaces[0], "route"], text=True)
            assert "default" not in routes
            host_links = subprocess.check_output(["ip", "-o", "link"], text=True)
            assert "port0" not in host_links
            assert "bridge" not in host_links

    def test_many_hosts_have_addresses_of_their_own(self):
        assert len({module._address(rank) for rank in range(1000)}) == 1000
        assert module._address(255) == "10.77.1.0"

    def test_network_is_gone_after_its_block(self):
        with emulated_network(2, 10**9):
            assert len(mine()) == 3  # two hosts and the switch
        assert mine() == set()

    def test_network_is_gone_after_an_exception(self):
        with pytest.raises(ZeroDivisionError), emulated_network(2, 10**9):
            _ = 1 / 0
        assert mine() == set()

    def test_half_built_network_is_removed(self, monkeypatch):
        def fail(*_):
            raise EmulationError("no tbf in this kernel")

        monkeypatch.setattr(module, "_shape", fail)
        with pytest.raises(EmulationError, match="no tbf"), emulated_network(2, 10**9):
            pass
        assert mine() == set()

    def test_two_networks_live_side_by_side(self):
        with emulated_network(1, 10**9) as first, emulated_network(1, 10**9) as second:
            assert set(first.namespaces).isdisjoint(second.namespaces)
            assert len(mine()) == 4
        assert mine() == set()

    def test_leftovers_of_a_killed_owner_are_removed_by_the_next_use_and_nothing_else(self):
        foreign = f"swim-{os.getpid()}"  # starts like our names, and is none
        subprocess.check_call(["ip", "netns", "add", foreign])
        try:
            with started([sys.executable, "-c", HOLD_A_NETWORK]) as owner:
                left = set(next_line(owner).split())
                assert len(left) == 2
                assert left <= namespaces()
                remove_leftovers()
                assert left <= namespaces()  # their owner still runs
                owner.kill()
                owner.wait()
            assert left <= namespaces()
            with emulated_network(1, 10**9):
                assert left.isdisjoint(namespaces())
            assert not any(name.startswith(f"sw{owner.pid}-") for name in namespaces())
            assert foreign in namespaces()
        finally:
            subprocess.check_call(["ip", "netns", "delete", foreign])
            remove_leftovers()

    def test_a_command_that_fails_is_named(self):
        with pytest.raises(EmulationError, match=r"ip netns delete never-made.*NET_ADMIN"):
            module._run("ip", "netns", "delete", "never-made")

    @pytest.mark.torch
    def test_benchmark_behind_slow_links(self, tmp_path: Path):
        rows = rows_of(f"-n 2 --size 64k --density 0.05 --network 100mbit --iterations 3 {SOME}", tmp_path)
        assert {"gloo-dense", "gloo-sparse", "dense_ring", "split_allgather"} <= set(rows)
        for row in rows.values():
            assert row["wrong"] == 0
            assert row["network"] == "100mbit"
            most = max(row["bytes_sent_max"], row["bytes_received_max"])
            assert row["wire_limit_seconds"] == most * 8 / 10**8
            assert row["seconds_min"] >= row["wire_limit_seconds"] - BURST_S
        assert rows["dense_ring"]["interface_bytes_max"] > rows["dense_ring"]["bytes_sent_max"]
        assert mine() == set()

    def test_mpi_crosses_the_slow_links(self, tmp_path: Path):
        words = "--driver mpi -n 3 --size 256k --density 0.05 --network 100mbit --iterations 3"
        rows = rows_of(f"{words} {SOME}", tmp_path)
        assert {"mpi-dense", "dense_ring", "split_allgather"} <= set(rows)
        for row in rows.values():
            assert row["wrong"] == 0
            # All bytes went through the links, and none faster than their rate.
            assert row["interface_bytes_max"] >= row["bytes_sent_max"]
            assert row["seconds_min"] >= row["wire_limit_seconds"] - BURST_S
        # Every rank of a dense allreduce sends at least 2 (P - 1) / P of the vector.
        assert rows["mpi-dense"]["bytes_sent_max"] >= 2 * 2 / 3 * (256 << 10) * 4
        assert mine() == set()

    def test_coding_and_rounding_save_bytes_on_the_links(self, tmp_path: Path):
        words = "-n 3 --size 256k --density 0.05 --network 100mbit --iterations 3 --no-peers"
        words += " --algorithms split_allgather,auto --precision coo,exact,float16,qsgd4"
        found = {(row["algorithm"], row["precision"]): row for row in measured(words, tmp_path)}
        for name in ("split_allgather", "auto"):
            coo, exact, half, levels = (found[name, p] for p in ("coo", "exact", "float16", "qsgd4"))
            for count in ("interface_bytes_max", "bytes_sent_max"):
                # An entry has 8 bytes; coded, its index has below 2, and its value 4, 2 or about a half.
                assert exact[count] < 6.3 / 8 * coo[count]
                assert half[count] < 4.3 / 8 * coo[count]
                assert levels[count] < 2.8 / 8 * coo[count]
            assert coo["bytes_per_nonzero"] == pytest.approx(8.0, rel=1e-3)  # with little padding
            assert not any(row["wrong"] for row in (coo, exact, half, levels))

    @pytest.mark.parametrize("driver", ["tcp", "mpi"])
    def test_a_killed_benchmark_leaves_what_the_next_use_removes(self, driver):
        with endless_benchmark(driver) as (benchmark, left):
            pids = [
                int(pid)
                for name in left
                for pid in subprocess.check_output(["ip", "netns", "pids", name]).split()
            ]
            assert len(pids) >= 2
            benchmark.kill()
            benchmark.communicate()
        assert_all_gone(pids)
        remove_leftovers()
        assert left.isdisjoint(namespaces())

    @pytest.mark.parametrize(("driver", "number"), [("tcp", signal.SIGINT), ("mpi", signal.SIGTERM)])
    def test_a_benchmark_that_is_ended_by_a_signal_cleans_up_itself(self, driver, number):
        with endless_benchmark(driver) as (benchmark, left):
            benchmark.send_signal(number)
            benchmark.communicate(timeout=PATIENCE_S)
        assert benchmark.returncode == 128 + number
        assert left.isdisjoint(namespaces())

    @pytest.mark.parametrize("gap_s", [0.0, 0.05, 0.3])
    def test_a_second_signal_does_not_stop_the_cleaning_up(self, gap_s):
        """It comes at once, while ranks are stopped, and while namespaces are removed."""
        with endless_benchmark("tcp") as (benchmark, left):
            for _ in range(3):
                if benchmark.poll() is None:
                    benchmark.send_signal(signal.SIGINT)
                time.sleep(gap_s)
            benchmark.communicate(timeout=PATIENCE_S)
        assert left.isdisjoint(namespaces())
