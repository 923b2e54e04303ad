"""What authors of algorithms and drivers test with; the library's own tests use nothing else.

    run_local      run an algorithm on every rank's vector, in one process
    ORACLES        what each algorithm of the table must return, in plain dense numpy
    check_driver   the conformance suite: what every driver has to do
    run_program    run a program on every rank, as threads of this process that are connected by TCP
    tcp_ranks      as run_program, a script
    mpi_ranks      the ranks of an MPI job

A new driver passes if this returns:

>>> from sparsewire.drivers import local
>>> def run_ranks(make_script, size):
...     results, _ = local.run([make_script(rank, size) for rank in range(size)])
...     return results
>>> check_driver(run_ranks)
"""

from sparsewire.testing.conformance import DRIVER_CHECKS, check_driver
from sparsewire.testing.oracles import ORACLES, dense, run_local, same_bits
from sparsewire.testing.ranks import RankErrors, mpi_ranks, run_program, tcp_ranks

__all__ = [
    "DRIVER_CHECKS",
    "ORACLES",
    "RankErrors",
    "check_driver",
    "dense",
    "mpi_ranks",
    "run_local",
    "run_program",
    "same_bits",
    "tcp_ranks",
]
