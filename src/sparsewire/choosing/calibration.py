"""Where measured figures live, and what is assumed where nobody has measured.

One JSON file in the user's cache directory holds a set of figures for each fingerprint: the facts that decide
how fast messages and merges are.  Addresses are in it as part of a hash only.  A file that cannot be read
or understood costs a warning, never a call.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sparsewire.cost import CostFigures
from sparsewire.errors import SparsewireError, WireError
from sparsewire.files import replaced_file

__all__ = ["ASSUMED", "Calibration", "Fingerprint", "cache_file", "host_number", "load", "save"]

FORMAT = 2  # of the file


@dataclass(frozen=True)
class Calibration:
    """Figures, and when they were measured: seconds since 1970, 0 if they are only assumed."""

    network: CostFigures
    tuned_at: float = 0.0

    def to_numbers(self) -> list[float]:
        """The figures as numbers of 0 or more, for a message."""
        return [self.tuned_at, *astuple(self.network)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Calibration:
        """The figures of another rank; raises WireError if they are none."""
        tuned_at, *figures = told = [float(number) for number in numbers]
        if len(figures) != len(fields(CostFigures)) or not all(0 <= number < math.inf for number in told):
            raise WireError(f"these are no figures of a network: {told}")
        network = CostFigures(*figures)
        if not network.bandwidth:
            raise WireError("a network with a bandwidth of 0 moves nothing")
        return cls(network, tuned_at)

    def __str__(self) -> str:
        if not self.tuned_at:
            return "assumed figures; `sparsewire tune` measures them"
        return time.strftime("figures tuned on %Y-%m-%d at %H:%M UTC", time.gmtime(self.tuned_at))


@dataclass(frozen=True)
class Fingerprint:
    """What figures depend on: the ranks, the way between them, and what computes."""

    driver: str
    size: int
    hosts: int  # how many different machines the ranks are on
    address: str  # rank 0's, as its driver knows it: it tells one network from another
    instructions: str
    processor: str
    processors: int
    version: str

    @classmethod
    def here(cls, driver: str, size: int, hosts: int, address: str, instructions: str) -> Fingerprint:
        """The fingerprint of a job whose rank 0 is this process."""
        release = ".".join(version("sparsewire").split(".")[:2])
        return cls(driver, size, hosts, address, instructions, _processor(), os.cpu_count() or 1, release)

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def public(self) -> dict[str, Any]:
        """What a reader of the file may see."""
        return {name: fact for name, fact in asdict(self).items() if name != "address"}

    @property
    def assumed(self) -> Calibration:
        """The figures of an ordinary machine of this kind."""
        return Calibration(ASSUMED.get((self.driver, self.hosts > 1), ASSUMED["tcp", True]))


def cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "sparsewire", "tuning.json")


def load(fingerprint: Fingerprint) -> Calibration:
    """What was measured for this fingerprint, or else what is assumed."""
    entry = _read_all().get(fingerprint.key)
    if entry is None:
        return fingerprint.assumed
    try:
        return _understood(entry)
    except (TypeError, KeyError, ValueError):
        _complain("an entry of it is not a set of figures")
        return fingerprint.assumed


def save(fingerprint: Fingerprint, calibration: Calibration) -> Path:
    """Store the figures beside those of other fingerprints.  Readers see the old file or the new one."""
    entry = {
        "facts": fingerprint.public,
        "tuned_at": calibration.tuned_at,
        "figures": asdict(calibration.network),
    }
    content = {"format": FORMAT, "tunings": {**_read_all(), fingerprint.key: entry}}
    file = cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(file, permissions=0o600) as new:  # its owner's alone
            json.dump(content, new, indent=1)
    except OSError as error:
        raise SparsewireError(f"the figures cannot be kept in {file}: {error}") from error
    return file


def _read_all() -> dict[str, Any]:
    try:
        content = json.loads(cache_file().read_text())
        if content["format"] != FORMAT:
            return {}  # another release's
        return dict(content["tunings"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _complain(f"{type(error).__name__}: {error}")
        return {}


def _understood(entry: dict[str, Any]) -> Calibration:
    figures = {field.name: float(entry["figures"][field.name]) for field in fields(CostFigures)}
    calibration = Calibration(CostFigures(**figures), float(entry["tuned_at"]))
    numbers = calibration.to_numbers()
    if not all(math.isfinite(number) and number >= 0 for number in numbers) or not figures["bandwidth"]:
        raise ValueError(f"figures that cannot be: {figures}")
    return calibration


def host_number() -> int:
    """A number that all processes of a host share, and no other host has; a network namespace is a host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        boot, namespace = platform.node(), ""
    return zlib.crc32(f"{boot}/{namespace}".encode())


def _complain(reason: str) -> None:
    warnings.warn(f"{cache_file()} is not used, run `sparsewire tune` again: {reason}", stacklevel=3)


def _processor() -> str:
    try:
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


# The figures of an ordinary x86 server, by driver and by whether there are several hosts.  In Python a call
# takes tens of microseconds, and so does each of its messages.
_CPU = {"seconds_per_entry": 3e-9, "seconds_per_value": 0.3e-9, "seconds_per_index": 1.2e-9}
ASSUMED = {
    ("tcp", False): CostFigures(
        latency=30e-6, bandwidth=1e9, overhead=60e-6, overlap=0.3, startup=80e-6, **_CPU
    ),
    ("tcp", True): CostFigures(
        latency=50e-6, bandwidth=117e6, overhead=60e-6, overlap=1.0, startup=80e-6, **_CPU
    ),
    ("mpi", False): CostFigures(
        latency=10e-6, bandwidth=2e9, overhead=30e-6, overlap=0.0, startup=50e-6, **_CPU
    ),
    ("mpi", True): CostFigures(
        latency=10e-6, bandwidth=1.1e9, overhead=30e-6, overlap=0.5, startup=50e-6, **_CPU
    ),
    ("local", False): CostFigures(
        latency=0.0, bandwidth=1e12, overhead=20e-6, overlap=0.0, startup=50e-6, **_CPU
    ),
}
