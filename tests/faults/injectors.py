"""Faults as a rank inflicts them on itself: each writes the moment into the journal, then happens.

Bytes on the wire are changed in the process that sends them, on their way to the kernel: what its peer
receives is what a broken network card or a wrong program would have sent.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from journal import Journal
from trials import Call, Fault, Trial


class Injected(Exception):  # noqa: N818  (the user's, not ours)
    """What user code raises between two calls."""


class Leaves(Exception):  # noqa: N818
    """The rank ends its program here, as a function that returns."""


class Injector:
    """The faults of one rank.  ``before`` is called at the beginning of each of its calls."""

    def __init__(self, trial: Trial, rank: int, journal: Journal) -> None:
        self._trial, self._rank, self._journal = trial, rank, journal
        self._mine = [fault for fault in trial.faults if fault.victim == rank]
        self.comm: Any = None  # once there is one
        self._kept: list[socket.socket] = []

    def before_joining(self) -> None:
        for fault in self._mine:
            if fault.kind == "kill while joining":
                self._after(fault.delay, partial(self._kill, fault))

    def while_serving(self) -> None:
        """An aggregator makes no calls: its faults happen after about as much time."""
        for fault in self._mine:
            self._after(fault.delay + 0.005 * fault.at, partial(TIMED[fault.kind], self, fault))

    def before(self, call: Call) -> Call:
        """The call that this rank makes instead, which mostly is the same."""
        for fault in self._mine:
            if fault.at != call.number or fault.kind == "kill while joining":
                continue
            if fault.kind in CHANGES:
                self._journal.write(fault=fault.kind)
                call = CHANGES[fault.kind](call, fault)
            elif fault.kind in IMMEDIATE:
                IMMEDIATE[fault.kind](self, fault)
            elif fault.delay:
                self._after(fault.delay, partial(TIMED[fault.kind], self, fault))
            else:
                TIMED[fault.kind](self, fault)
        return call

    @staticmethod
    def _after(seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()

    # -- processes -------------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        self._journal.write(fault=fault.kind)
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self, fault: Fault) -> None:
        if "seconds" in fault.detail:  # somebody else has to wake it
            wake = f"sleep {fault.detail['seconds']:.3f}; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", wake], stdin=subprocess.DEVNULL)
        self._journal.write(fault=fault.kind)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _fork(self, fault: Fault) -> None:
        """A child that inherits everything, does nothing, and outlives its parent."""
        pid = os.fork()
        if pid == 0:
            time.sleep(fault.detail["seconds"])
            os._exit(0)
        self._journal.write(child=pid)
        if not fault.detail["dies"]:
            self._journal.write(fault=fault.kind)

    def _exit(self, fault: Fault) -> None:
        self._journal.write(fault=fault.kind)
        how = fault.detail["how"]
        if how.startswith("os._exit"):
            os._exit(4)
        if how == "return":
            raise Leaves
        sys.exit(3 if "3" in how else 0)

    def _raise(self, fault: Fault) -> None:
        self._journal.write(fault=fault.kind)
        raise Injected("user code fails between two calls")

    def _close(self, fault: Fault) -> None:
        self._journal.write(fault=fault.kind)
        self.comm.close()
        time.sleep(fault.detail["seconds"])
        raise Leaves

    def _sleep(self, fault: Fault) -> None:
        self._journal.write(fault=fault.kind)
        time.sleep(fault.detail["seconds"])

    def _use_up_descriptors(self, fault: Fault) -> None:
        """From now on this process can open nothing, or almost nothing."""
        used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        self._journal.write(fault=fault.kind)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + fault.detail["spare"], hard))

    # -- the network -----------------------------------------------------------------------------

    def _link_down(self, fault: Fault) -> None:
        subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        self._journal.write(fault=fault.kind)  # now, because the command takes its time on a busy machine
        if "seconds" in fault.detail:
            time.sleep(fault.detail["seconds"])
            subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)

    def _interrupt_link(self, fault: Fault) -> None:
        threading.Thread(target=self._link_down, args=(fault,), daemon=True).start()

    def _drop_pair(self, fault: Fault) -> None:
        """Frames between two hosts go to a hardware address that nobody has."""
        spaces, addresses = os.environ["NAMESPACES"].split(), os.environ["ADDRESSES"].split()
        pairs = [(fault.victim, fault.other), (fault.other, fault.victim)]
        self._journal.write(fault=fault.kind)
        for here, there in pairs if fault.detail["both_ways"] else pairs[:1]:
            nobody = ("lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
            subprocess.run(
                ["ip", "-n", spaces[here], "neigh", "replace", addresses[there], *nobody], check=True
            )

    def _send_garbage(self, fault: Fault) -> None:
        """A stranger dials a rank."""
        transport = self.comm._driver.transport
        address = transport.addresses[fault.other]
        chance = random.Random(fault.detail["chance"])
        self._journal.write(fault=fault.kind)
        what = fault.detail["what"]
        with contextlib.suppress(OSError):  # it may be refused, or closed while we send
            for _ in range(60 if what == "many" else 1):
                self._kept.append(stranger := socket.create_connection(address, timeout=1.0))
                if what == "http":
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 50)
                elif what in ("bytes", "many"):
                    stranger.sendall(chance.randbytes(chance.choice([1, 40, 5000])))
                elif what == "reset":
                    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    stranger.close()

    # -- bytes -----------------------------------------------------------------------------------

    def _corrupt(self, fault: Fault) -> None:
        _OnTheWire(fault, self.comm._driver.transport, self._journal).install()

    def _slow_down(self, fault: Fault) -> None:
        """Send little at a time, and wait before it."""
        self._journal.write(fault=fault.kind)

        def slowly(send: Any, sock: Any, buffers: Any) -> int:
            time.sleep(fault.detail["seconds"])
            return int(send(sock, [memoryview(b"".join(buffers))[:50_000]]))

        _intercept(self.comm._driver.transport, slowly)


def _intercept(transport: Any, sendmsg: Callable[[Any, Any, Any], int]) -> None:
    """Have ``sendmsg(send, sock, buffers)`` send what links send; with TLS, before it is encrypted."""
    for kind in {type(link.sock) for links in transport._links.values() for link in links}:
        send = kind.sendmsg
        kind.sendmsg = lambda sock, buffers, send=send: sendmsg(send, sock, buffers)


class _OnTheWire:
    """Changes what this process sends next, once."""

    def __init__(self, fault: Fault, transport: Any, journal: Journal) -> None:
        self._fault, self._transport, self._journal = fault, transport, journal
        self._chance = random.Random(fault.detail["chance"])
        self._done = False

    def install(self) -> None:
        _intercept(self._transport, self._sendmsg)

    def _sendmsg(self, send: Any, sock: Any, buffers: Any) -> int:
        peer = self._peer(sock)
        data = b"".join(bytes(buffer) for buffer in buffers)
        if self._done or peer is None or not data:
            return int(send(sock, buffers))
        change = {"bit flip": self._flip, "truncation": self._truncate, "junk on a link": self._precede}
        try:
            return change[self._fault.kind](partial(send, sock), sock, data)
        finally:  # TLS may raise: the other end has answered junk with an alert
            if self._done:
                self._journal.write(fault=self._fault.kind, peer=peer)

    def _peer(self, sock: Any) -> int | None:
        links = (link for links in self._transport._links.values() for link in links)
        return next((link.peer for link in links if link.sock is sock), None)

    def _flip(self, send: Any, _: Any, data: bytes) -> int:
        changed, at = bytearray(data), self._chance.randrange(len(data))
        for bit in range(self._fault.detail["bits"]):
            changed[(at + bit // 8) % len(data)] ^= 1 << (bit % 8)
        sent = int(send([changed]))
        self._done = sent > at  # otherwise it is still to be sent, and unchanged
        return sent

    def _truncate(self, send: Any, _: Any, data: bytes) -> int:
        keep = max(0, len(data) - self._fault.detail["bytes"])
        sent = int(send([memoryview(data)[:keep]])) if keep else 0
        self._done = sent == keep
        return len(data) if self._done else sent

    def _precede(self, send: Any, sock: Any, data: bytes) -> int:
        """Past everything that protects what is sent."""
        os.write(sock.fileno(), self._chance.randbytes(self._fault.detail["bytes"]))
        self._done = True
        return int(send([data]))


# -- other calls than those of the other ranks ---------------------------------------------------


def _mismatched(call: Call, fault: Fault) -> Call:
    what = fault.detail["what"]
    if what == "length":
        return replace(call, length=call.length + 1)
    if what == "dtype":
        return replace(call, dtype="float32")
    if what == "op":
        return replace(call, op="max")
    if what == "algorithm":
        return replace(
            call, name=None, algorithm="dense_ring" if call.algorithm != "dense_ring" else "hybrid"
        )
    return replace(call, operation="allgather", blocking=call.blocking)


def _unusable(call: Call, fault: Fault) -> Call:
    return replace(call, operation=f"unusable {fault.detail['what']}")


def unusable(call: Call) -> tuple[Any, dict[str, Any]]:
    """The argument and the options of a call that its own rank must refuse."""
    what = call.operation.removeprefix("unusable ")
    x = np.ones(call.length)
    return {
        "unsorted": ((call.length, [5, 4], np.ones(2)), {}),
        "text": ("nonsense", {}),
        "op": (x, {"op": "median"}),
        "timeout": (x, {"timeout": -1.0}),
    }[what]


CHANGES: dict[str, Callable[[Call, Fault], Call]] = {"mismatch": _mismatched, "bad input": _unusable}
# In the thread that makes the calls, before the call.
IMMEDIATE: dict[str, Callable[[Injector, Fault], None]] = {
    "fork": Injector._fork,
    "exit": Injector._exit,
    "exception": Injector._raise,
    "close": Injector._close,
    "slow rank": Injector._sleep,
    "garbage to a port": Injector._send_garbage,
    "link interrupted": Injector._interrupt_link,
}
# There, or in a timer's thread during the call.
TIMED: dict[str, Callable[[Injector, Fault], None]] = {
    "kill": Injector._kill,
    "stop": Injector._stop,
    "pause": Injector._stop,
    "continue too late": Injector._stop,
    "link down": Injector._link_down,
    "link interrupted": Injector._interrupt_link,
    "pair drop": Injector._drop_pair,
    "junk on a link": Injector._corrupt,
    "bit flip": Injector._corrupt,
    "truncation": Injector._corrupt,
    "slow link": Injector._slow_down,
    "descriptors": Injector._use_up_descriptors,
}
