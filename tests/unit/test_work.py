"""Work is counted for whoever measures it, and for nobody else."""

import threading

from sparsewire import work


def test_work_of_another_thread_is_not_measured():
    with work.measured() as meter:
        other = threading.Thread(target=work.count, args=(1, 1))
        other.start()
        other.join()
        work.count(values=2)
    assert meter.work == (0, 2)


def test_work_after_the_measurement_is_not_measured():
    with work.measured() as meter:
        work.count(entries=1)
    work.count(entries=1)
    assert meter.work == (1, 0)
