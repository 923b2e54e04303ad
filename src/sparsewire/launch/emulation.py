"""An emulated network: every rank in its own namespace, behind its own rate-limited link.

    sw<pid>-<n>-0   eth0 ──tbf──┐            ┌──tbf── port0 ┐
    sw<pid>-<n>-1   eth0 ──tbf──┤ veth pairs ├──tbf── port1 ┤ bridge, in sw<pid>-<n>-switch
    ...                         ┘            └              ┘

A token bucket filter (tbf) at both ends of each link limits what a rank sends and what it receives.  The
switch has its own namespace, so the network of the host does not change.  Queues are so long that nothing is
dropped, and no latency is added: this emulates the rate of a network and not its distances.

Names contain the process id of their owner.  The next use removes the namespaces of owners that were killed,
and no others.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparsewire.errors import InputError, SparsewireError
from sparsewire.launch.signals import held_signals

__all__ = [
    "EmulatedNetwork",
    "EmulationError",
    "Host",
    "emulated_network",
    "interface_bytes",
    "parse_rate",
    "remove_leftovers",
    "require_emulation",
]

INTERFACE = "eth0"
OUR_NAME = re.compile(r"sw(\d+)-(\d+)-(\d+|switch)")
NETNS_DIRECTORY = Path("/run/netns")  # where iproute2 keeps named namespaces
# The longest queue of a link.  TCP's windows put about 6 MB into it for every peer that sends to one rank, so
# it is long enough for 40 peers.  This is a limit and not an allocation.
QUEUE_BYTES = 256 << 20
# One GSO packet.  With a smaller bucket the kernel cuts every packet into frames, which takes CPU time.
SMALLEST_BURST_BYTES = 64 << 10
UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}  # as in tc(8): powers of ten

_networks_made = itertools.count()
_live_prefixes: set[str] = set()


class EmulationError(SparsewireError):
    """This machine cannot emulate a network; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Host:
    """The place of one rank: its namespace, and its address there."""

    namespace: str
    address: str


@dataclass(frozen=True)
class EmulatedNetwork:
    """One host per rank, all behind links of the same rate."""

    hosts: tuple[Host, ...]
    bits_per_second: int

    @property
    def namespaces(self) -> list[str]:
        return [host.namespace for host in self.hosts]


def parse_rate(text: str) -> int:
    """Bits per second.

    >>> parse_rate("2.5gbit"), parse_rate("100mbit")
    (2500000000, 100000000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?bit)(?:/s|ps)?", text.strip().lower())
    if match is None:
        raise InputError(f"rate {text!r} is not understood; write for example 1gbit, 2.5gbit or 100mbit")
    bits = round(float(match[1]) * UNITS[match[2]])
    if bits < 8:
        raise InputError(f"rate {text!r} is less than a byte per second")
    return bits


@contextmanager
def emulated_network(size: int, bits_per_second: int) -> Iterator[EmulatedNetwork]:
    """A network for ``size`` ranks, which is removed at the end of the block, also after an exception."""
    require_emulation()
    remove_leftovers()
    prefix = f"sw{os.getpid()}-{next(_networks_made)}"
    hosts = tuple(Host(f"{prefix}-{rank}", _address(rank)) for rank in range(size))
    _live_prefixes.add(prefix)
    with held_signals() as signals:
        try:
            _build(f"{prefix}-switch", hosts, bits_per_second)
            signals.release()
            yield EmulatedNetwork(hosts, bits_per_second)
        finally:
            signals.holding = True  # a second Ctrl-C must not leave half of the namespaces
            _live_prefixes.discard(prefix)
            for name in _our_namespaces():
                if name.startswith(f"{prefix}-"):
                    _delete(name)


def require_emulation() -> None:
    """Raise EmulationError, which says what to do, unless this process may build networks."""
    if sys.platform != "linux":
        raise EmulationError(
            f"network emulation needs Linux namespaces and this is {sys.platform}: "
            "leave out --network, or run it in a Linux virtual machine"
        )
    if os.geteuid() != 0:
        raise EmulationError("network emulation needs root: run it with sudo, or leave out --network")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise EmulationError(
                f"network emulation needs the command '{tool}': install iproute2 "
                "(apt install iproute2), or leave out --network"
            )


def remove_leftovers() -> list[str]:
    """Remove the namespaces whose owner has ended; their names."""
    leftovers = [name for name in _our_namespaces() if not _has_owner(name)]
    for name in leftovers:
        _delete(name)
    return leftovers


def interface_bytes(interface: str = INTERFACE) -> tuple[int, int]:
    """Bytes that the interface of this namespace has sent and received so far, with link headers."""
    counters = Path("/sys/class/net", interface, "statistics")
    sent, received = ((counters / name).read_text() for name in ("tx_bytes", "rx_bytes"))
    return int(sent), int(received)


def _address(rank: int) -> str:
    high, low = divmod(rank + 1, 256)
    return f"10.77.{high}.{low}"


def _build(switch: str, hosts: Sequence[Host], bits_per_second: int) -> None:
    _run("ip", "netns", "add", switch)
    _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge", "up")
    for rank, host in enumerate(hosts):
        port, inside = f"port{rank}", ("ip", "-n", host.namespace)
        _run("ip", "netns", "add", host.namespace)
        _run(
            *("ip", "-n", switch, "link", "add", port, "type", "veth"),
            *("peer", "name", INTERFACE, "netns", host.namespace),
        )
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        _run(*inside, "addr", "add", f"{host.address}/16", "dev", INTERFACE)
        _run(*inside, "link", "set", INTERFACE, "up")
        _run(*inside, "link", "set", "lo", "up")
        _shape(host.namespace, INTERFACE, bits_per_second)  # what the rank sends
        _shape(switch, port, bits_per_second)  # what it receives


def _shape(namespace: str, interface: str, bits_per_second: int) -> None:
    # The bytes of a millisecond: few compared with the calls measured, and enough for the kernel's timers.
    burst = max(SMALLEST_BURST_BYTES, bits_per_second // 8 // 1000)
    _run(
        *("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf"),
        *("rate", f"{bits_per_second}bit", "burst", f"{burst}b", "limit", f"{QUEUE_BYTES}b"),
    )


def _our_namespaces() -> list[str]:
    if not NETNS_DIRECTORY.is_dir():
        return []
    return sorted(path.name for path in NETNS_DIRECTORY.iterdir() if OUR_NAME.fullmatch(path.name))


def _has_owner(namespace: str) -> bool:
    match = OUR_NAME.fullmatch(namespace)
    assert match is not None, namespace
    pid, serial = int(match[1]), match[2]
    if pid == os.getpid():  # an ended process may have had the same id
        return f"sw{pid}-{serial}" in _live_prefixes
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return (
        status.rpartition(")")[2].split()[0] != "Z"
    )  # a zombie has ended, and its parent has not waited for it


def _delete(namespace: str) -> None:
    try:
        _run("ip", "netns", "delete", namespace)
    except EmulationError:
        if namespace in _our_namespaces():  # it is not if another process has removed the same leftover
            raise


def _run(*command: str) -> None:
    # In a session of its own, because Ctrl-C on a terminal would end this command too.
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode != 0:
        raise EmulationError(
            f"network emulation failed at '{' '.join(command)}': {done.stderr.strip()}. In a container it "
            "needs the capabilities NET_ADMIN and SYS_ADMIN (docker run --privileged)"
        )
