"""A rank that sends valid frames of another vector than the call's, over TCP: all ranks name it."""

import functools

import jobs
import pytest

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS

SIZE, LIAR = 3, 1
SECONDS = 10.0  # far below the time-out of the calls: the frames are refused when they come

COLLECTIVES = {
    **{name: f"comm.allreduce(x, algorithm={name!r})" for name in ALGORITHMS},
    **{name: f"comm.allreduce_topk(x, 10, algorithm={name!r})" for name in TOPK_ALGORITHMS},
    "auto": "comm.allreduce(x)",
    "out": "comm.allreduce(x, algorithm='split_allgather', out=np.empty(3000, 'float32'))",
    "max": "comm.allreduce(x, algorithm='recursive_doubling', op='max')",
    "rounded": "comm.allreduce(x, algorithm='split_allgather', precision='qsgd4')",
    "reduce_scatter": "comm.reduce_scatter(x)",
    "reduce": "comm.reduce(x, root=0)",
    "barrier": "comm.barrier()",
    "allgather": "comm.allgather(x)",
    "broadcast": "comm.broadcast(x if rank == LIAR else None, root=LIAR)",
}
# What the liar sends in place of its first message, which is the piece p, or a list that ends with it.
FORGERIES = {
    "longer": "empty(p.length + 2**20, 0, p.length + 2**20, p.dtype)",
    "of 2^40": "empty(2**40, 0, 2**40, p.dtype)",
    "longer and full": "full(p.length + 10**6, 0, p.length + 10**6, p.dtype)",
    "of another dtype": "p.with_values(p.values.astype('float64' if p.dtype == 'int32' else 'int32'))",
    "a part": "empty(p.length + 5, 2, p.length + 4, p.dtype)",
    "a list": "[p]",
    "many pieces": "[p] * 100",
}
# Only the sender knows these, so they are no forgeries.
ALLOWED = {
    "allgather": {"longer", "of 2^40", "longer and full"},
    "broadcast": {"longer", "of 2^40", "longer and full", "of another dtype"},
}

PROGRAM = """
from sparsewire.drivers.engine import Engine
from sparsewire.steps import Send
from sparsewire.vector import SparseVector

def empty(length, start, stop, dtype):
    indices = np.empty(0, np.uint32 if length <= 2**32 else np.uint64)
    return SparseVector.piece(length, start, stop, indices, np.empty(0, dtype))

def full(length, start, stop, dtype):
    return SparseVector.piece(length, start, stop, None, np.ones(stop - start, dtype))

def forged(payload, forge):
    if not isinstance(payload, list):
        return forge(payload)
    changed = forge(payload[-1])
    if isinstance(changed, list):
        return payload[0] if len(changed) == 1 else payload * 100
    return [*payload[:-1], changed]

def tampering(script, forge):
    received, honest = None, True
    while True:
        try:
            steps = script.send(received)
        except StopIteration as end:
            return end.value
        changed = []
        for step in steps:
            if isinstance(step, Send):
                step, honest = Send(step.peer, forged(step.payload, forge) if honest else step.payload), False
            changed.append(step)
        received = yield changed

lie = None
start = Engine.start
def lying_start(self, script, *arguments, **options):
    return start(self, script if lie is None else tampering(script, lie), *arguments, **options)
Engine.start = lying_start

def outcome(comm, call, forge):
    global lie

    def attempt():
        global lie
        comm.barrier()  # another rank may be through, and have the forged frame already
        lie = forge
        call()
        lie = None
        comm.barrier()  # a rank may have done its part when another one refuses the frame

    begin = time.monotonic()
    ended = tried(attempt)
    lie = None
    return ended | {"seconds": time.monotonic() - begin}

def main(rank, size):
    indices = np.sort(np.random.default_rng(rank).choice(3000, 200, replace=False))
    x = sw.SparseVector(3000, indices, np.ones(200, "float32"))
    outcomes = {}
    with sw.init(timeout=60) as world:
        for name, call, forge in CASES:
            with world.split(0) as comm:
                call = eval("lambda: " + call, globals() | locals())
                forge = eval("lambda p: " + forge) if rank == LIAR else None
                outcomes[name] = outcome(comm, call, forge)
    return outcomes
"""


@functools.cache
def outcomes():
    cases = [
        (f"{name}: {forgery}", call, forge)
        for name, call in COLLECTIVES.items()
        for forgery, forge in FORGERIES.items()
        if forgery not in ALLOWED.get(name, ())
    ]
    return jobs.run(f"LIAR, CASES = {LIAR}, {cases}\n{PROGRAM}", SIZE, seconds=200)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_rank_names_the_one_that_sent_it(name):
    for forgery in FORGERIES.keys() - ALLOWED.get(name, set()):
        for outcome in outcomes():
            ended = outcome["result"][f"{name}: {forgery}"]
            assert ended.get("error") == "WireError", (forgery, ended)
            assert ended["message"].startswith(f"rank {LIAR} "), (forgery, ended)
            assert ended["seconds"] < SECONDS


def test_a_header_takes_no_memory():
    """The bytes that a header announces are reserved, and become memory as they come."""
    [outcome] = jobs.run(
        """
        import resource
        from sparsewire.coding import frame
        from sparsewire.coding.call import Envelope
        from sparsewire.vector import SparseVector

        def main(rank, size):
            values = np.broadcast_to(np.float32(1), 2**30)  # 4 GB that are one number
            codes = frame._Codes(frame.DENSE, frame._dtype_code(values.dtype))
            header = frame._header(codes, Envelope(), (2**30, 0, 2**30, 2**30), 0, frame.SINGLE)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            reading = frame.read_message()
            next(reading)[:] = header
            assert len(next(reading)) == 2**32
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        """,
        1,
    )
    assert outcome["result"] < 10_000  # kilobytes
