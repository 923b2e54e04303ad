"""Training that loses a rank and takes it in again:  sparsewire run -n 3 examples/elastic.py

The last rank crashes in the middle of step 20.  The others go on with step 20 at once, without it.  It starts
again, knows nothing, and is taken in before step 40.  Nobody else is started again.
"""

import os
import sys

import numpy as np

import sparsewire as sw

STEPS, CRASH, RETURN = 60, 20, 40
FEATURES, ROWS, RATE = 1_000, 400, 0.1


class Training:
    """Least squares, by the largest entries of every rank's gradient; ``step`` is the next one."""

    def __init__(self, comm: sw.Communicator) -> None:
        self.weights, self.step = np.zeros(FEATURES), 0
        self.sync = sw.Sync(comm, "ok_topk", density=0.2)
        self.state = self.sync.init(FEATURES, "float64")
        self.truth = np.random.default_rng(0).normal(size=FEATURES)

    def go_on(self, comm: sw.Communicator) -> None:
        """Have what rank 0 has, with a new group.

        A failed step may be over at some ranks and not at others, so this is needed after a loss, too.
        """
        self.weights = comm.broadcast(self.weights)
        self.step = int(comm.broadcast(np.array([self.step]))[0])
        self.state = self.sync.go_on(comm, self.state)

    def run_step(self) -> None:
        chance = np.random.default_rng([self.step, self.sync.comm.rank])
        rows = chance.normal(size=(ROWS, FEATURES)) / FEATURES**0.5
        gradient = rows.T @ (rows @ (self.weights - self.truth)) * (FEATURES / ROWS)
        mean, self.state = self.sync.step(gradient, self.state)
        self.weights -= RATE * mean.to_dense()
        self.step += 1

    def report(self, what: str) -> None:
        if self.sync.comm.rank == 0:
            error = np.linalg.norm(self.weights - self.truth) / np.linalg.norm(self.truth)
            print(f"step {self.step:2d}: {what}; {self.sync.comm.size} ranks, error {error:.2f}", flush=True)


def crash_and_start_again() -> None:
    """The process is replaced by a new one, and its connections end, as after a crash."""
    os.environ["RETURNS"] = "1"
    os.execv(sys.executable, [sys.executable, __file__])


def main() -> None:
    returns = "RETURNS" in os.environ
    comm = sw.join(timeout=60) if returns else sw.init(timeout=60)
    training = Training(comm)
    if returns:
        training.go_on(comm)
    size = int(os.environ.get("WORLD_SIZE", "1"))  # that of the job; a group that has lost a rank is smaller
    if size == 1:
        raise SystemExit("a rank that is alone cannot be lost: sparsewire run -n 3 examples/elastic.py")
    crashes = comm.rank == size - 1 and not returns
    training.report("begins")
    while training.step < STEPS:
        if training.step == CRASH and crashes:
            crash_and_start_again()
        if training.step == RETURN and comm.size < size:
            comm = comm.grow(at_least=1, timeout=60)
            training.go_on(comm)
            training.report("took in who has returned")
        try:
            training.run_step()
        except sw.PeerLostError as error:
            comm = comm.shrink(timeout=60)
            training.go_on(comm)
            training.report(f"goes on, because {str(error).split(':')[0]}")
    training.report("ends")
    comm.close()


if __name__ == "__main__":
    main()
