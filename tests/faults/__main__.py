"""The campaign:  python tests/faults --trials 1000 --seed 17     one trial again:  --seed 17 --trial 42"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "drivers"), str(TESTS / "mpi")]

import report  # noqa: E402
import trials  # noqa: E402
from campaign import Done, run_all, usable_drivers, work  # noqa: E402
from leftovers import Leftovers  # noqa: E402


def main() -> int:
    options = _options()
    if options.work:
        work()
        return 0
    drivers = options.drivers.split(",") if options.drivers else usable_drivers()
    numbers = range(options.trials) if options.trial is None else [options.trial]
    orders = [(options.seed, number, drivers) for number in numbers]
    if options.fault:
        orders = [order for order in orders if trials.draw(*order).kind == options.fault]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before, started = Leftovers.here(), time.monotonic()
    done: list[Done] = []
    with contextlib.suppress(KeyboardInterrupt):  # then the table is that of the trials so far
        for one in run_all(orders, min(options.workers, len(orders))):
            done.append(one)
            verbose, seconds = options.trial is not None, time.monotonic() - started
            report.tell(one, done, len(orders), seconds, verbose)
    result = report.result(options.seed, drivers, done, time.monotonic() - started, before.new())
    print(report.table(result))
    if options.json:
        report.write(options.json, result)
    return int(report.has_failed(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--trials", type=int, default=1000, help="how many")
    parser.add_argument("--trial", type=int, help="the number of a single one; it tells all that it knows")
    parser.add_argument("--fault", choices=trials.FAULTS, help="only trials of this fault")
    parser.add_argument("--drivers", help="such as tcp,network; by default all that this machine has")
    parser.add_argument("--workers", type=int, default=2, help="trials at the same time")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)  # as one of the workers
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
