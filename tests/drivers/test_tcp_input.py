"""Bad and unusual arguments over TCP, in real processes: every rank raises the same, and the next call works.

All cases of one group size share one job; each test looks at what the ranks wrote down for its case.
"""

import functools

import jobs
import pytest

from sparsewire.algorithms import ALGORITHMS

SIZES = [2, 3, 5]

# name -> (the one rank's argument, keywords; what everybody is told)
BAD_INPUT = {
    "unsorted": (
        "(9, [1, 5, 3], ones(3))",
        "",
        "indices[2] is 3, which comes after the larger indices[1] = 5",
    ),
    "duplicate": ("(9, [1, 5, 5], ones(3))", "", "indices[2] is 5, which repeats indices[1] = 5"),
    "negative": ("(9, [1, -4, 5], ones(3))", "", "indices[1] is -4, outside a vector of length 9"),
    "out_of_range": ("(9, [1, 4, 9], ones(3))", "", "indices[2] is 9, outside a vector of length 9"),
    "far_out_of_range": ("(9, [1, 2**32 + 1], ones(2))", "", "indices[1] is 4294967297, outside"),
    "more_entries_than_places": ("(2, [0, 1, 2], ones(3))", "", "3 entries in a vector of length 2"),
    "indices_without_values": ("(9, [0, 1, 2], ones(2))", "", "3 indices but 2 values"),
    "fractional_indices": ("(9, [0.5, 1.0], ones(2))", "", "indices have dtype float64"),
    "negative_length": ("(-1, [], ones(0))", "", "length is -1"),
    "unsupported_dtype": ("np.zeros(9, complex)", "", "values have dtype complex128; supported are float32"),
    "unsupported_object": ("'text'", "", "str cannot be summed; give a numpy array"),
    "ragged": ("(9, [[0], [1, 2]], ones(2))", "", "inhomogeneous"),
    "unknown_algorithm": (
        "ones(9)",
        "algorithm='magic'",
        "unknown algorithm 'magic'; known are auto, ",
    ),
    "unknown_op": ("ones(9)", "op='xor'", "unknown op 'xor'; known are sum, max, min, avg"),
    "mean_of_integers": ("np.arange(9)", "op='avg'", "the mean of int64 values is no integer"),
    "unknown_precision": ("ones(9)", "precision='int8'", "unknown precision 'int8'; known are float16, "),
    "rounded_integers": ("np.arange(9)", "precision='qsgd4'", "precision qsgd4 rounds float32 and float64"),
    "rounded_maximum": ("ones(9)", "precision='qsgd4', op='max'", "qsgd4 is right on average"),
    "rounding_everywhere": (
        "ones(9)",
        "precision='float16', algorithm='sparse_ring'",
        "sparse_ring adds up in many places, and would round in each; precision float16 needs one of",
    ),
    "feedback_of_another_tensor": (
        "ones(9)",
        "precision='qsgd4', feedback=sw.Feedback(ones(8), ones(8))",
        "the feedback is for 8 float64 values and the vector has 9 float64 values",
    ),
    "timeout_of_zero": ("ones(9)", "timeout=0", "timeout is 0"),
    "timeout_that_is_no_number": ("ones(9)", "timeout='soon'", "timeout is 'soon'"),
}

# name -> (what the last rank calls, what the others call; what the message has to name)
MISMATCHES = {
    "length": ("comm.allreduce(ones(9))", "comm.allreduce(ones(10))", ["length=9", "length=10"]),
    "dtype": ("comm.allreduce(ones(9))", "comm.allreduce(ones(9, 'f4'))", ["float64", "float32"]),
    "op": ("comm.allreduce(ones(9))", "comm.allreduce(ones(9), op='avg')", ["op=sum", "op=avg"]),
    "algorithm": (
        "comm.allreduce(ones(9), algorithm='dense_ring')",
        "comm.allreduce(ones(9), algorithm='split_allgather')",
        ["algorithm=dense_ring", "algorithm=split_allgather"],
    ),
    "automatic_and_named": (
        "comm.allreduce(ones(9))",
        "comm.allreduce(ones(9), algorithm='recursive_doubling')",
        ["algorithm=auto", "algorithm=recursive_doubling"],
    ),
    "precision": (
        "comm.allreduce(ones(9), algorithm='allgather_sum', precision='qsgd4')",
        "comm.allreduce(ones(9), algorithm='allgather_sum', precision='float16')",
        ["precision=qsgd4", "precision=float16"],
    ),
    "rounded_and_exact": (
        "comm.allreduce(ones(9), algorithm='split_allgather', precision='qsgd4')",
        "comm.allreduce(ones(9), algorithm='split_allgather')",
        ["op=sum, precision=qsgd4)", "op=sum)"],
    ),
    "collective": ("comm.allreduce(ones(9))", "comm.allgather(ones(9))", ["allreduce(", "allgather("]),
    "barrier": ("comm.barrier()", "comm.reduce_scatter(ones(9))", ["barrier()", "reduce_scatter("]),
    "gathered_dtype": ("comm.allgather(ones(9))", "comm.allgather(ones(9, 'i8'))", ["float64", "int64"]),
}

PROGRAM = """
from numpy import ones
def main(rank, size):
    outcomes = {}
    with sw.init(timeout=30) as comm:
        def then_a_good_one(x):
            right = comm.allreduce(np.full(5, 2.0**rank)).tolist() == [2.0**size - 1] * 5
            return right and comm.last.operation == "allreduce"
"""


@functools.cache
def outcomes(size):
    """{case: one outcome for each rank} of one job; each case is followed by a collective that must work."""
    lines = [PROGRAM]
    for name, (bad, keywords, _) in BAD_INPUT.items():
        lines.append(
            f"        x, keywords = ({bad}, dict({keywords})) if rank == size - 1 else (ones(9), {{}})\n"
            f"        outcomes['input {name}'] = tried(lambda: str(comm.allreduce(x, **keywords)))\n"
            f"        outcomes['after input {name}'] = tried(lambda: then_a_good_one(x))\n"
        )
    for name, (one, other, _) in MISMATCHES.items():
        lines.append(
            f"        outcomes['mismatch {name}'] = tried(\n"
            f"            lambda: str({one}) if rank == size - 1 else str({other}))\n"
            f"        outcomes['after mismatch {name}'] = tried(lambda: then_a_good_one(None))\n"
        )
    ranks = jobs.run("".join(lines) + "    return outcomes\n", size)
    assert all("result" in rank for rank in ranks), ranks
    return {case: [rank["result"][case] for rank in ranks] for case in ranks[0]["result"]}


@pytest.mark.parametrize("case", BAD_INPUT)
@pytest.mark.parametrize("size", SIZES)
def test_bad_input_on_one_rank_is_raised_on_every_rank(size, case):
    got = outcomes(size)[f"input {case}"]
    expected = f"rank {size - 1}: "
    for rank, outcome in enumerate(got):
        assert outcome.get("error") == "InputError", (rank, outcome)
        assert "ValueError" in outcome["kinds"]
        assert outcome["message"] == got[0]["message"]
        assert outcome["message"].startswith(expected), (rank, outcome)
        assert BAD_INPUT[case][2] in outcome["message"], (rank, outcome)


@pytest.mark.parametrize("case", MISMATCHES)
@pytest.mark.parametrize("size", SIZES)
def test_calls_that_differ_are_raised_on_every_rank_naming_both(size, case):
    for rank, outcome in enumerate(outcomes(size)[f"mismatch {case}"]):
        assert outcome.get("error") == "CallMismatchError", (rank, outcome)
        for named in (*MISMATCHES[case][2], f"rank {size - 1} called"):
            assert named in outcome["message"], (rank, outcome)


@pytest.mark.parametrize(
    "case", [f"input {name}" for name in BAD_INPUT] + [f"mismatch {name}" for name in MISMATCHES]
)
@pytest.mark.parametrize("size", SIZES)
def test_next_collective_works_after(size, case):
    assert outcomes(size)[f"after {case}"] == [{"result": True}] * size


ONE_SIDED = """
def main(rank, size):
    with sw.init(timeout=30) as comm:
        comm.barrier()
        first = tried(lambda: str(comm.broadcast(np.full(3, rank), root=rank)))  # everybody is root
        second = tried(comm.barrier)
        third = tried(lambda: comm.allreduce(np.ones(2)).tolist())
        return first, second, third
"""


@pytest.mark.parametrize("size", SIZES)
def test_a_difference_that_a_one_sided_call_cannot_see_is_raised_by_the_next(size):
    """A root waits for nobody, so it may be through before anybody notices that all were roots."""
    for outcome in jobs.run(ONE_SIDED, size):
        first, second, third = outcome["result"]
        [error] = [o for o in (first, second) if "error" in o]
        assert error["error"] == "CallMismatchError", outcome
        assert "broadcast(root=" in error["message"]
        assert third == {"result": [size, size]}


UNUSUAL = """
from numpy import ones
def main(rank, size):
    outcomes = {}
    with sw.init(timeout=30) as comm:
        frozen = np.full(6, 2.0**rank)
        frozen.flags.writeable = False
        matrix = np.arange(12.0).reshape(3, 4)
        outcomes["read_only"] = comm.allreduce(frozen).tolist() == [2.0**size - 1] * 6
        outcomes["strided"] = comm.allreduce(np.full(12, 2.0**rank)[::3]).tolist() == [2.0**size - 1] * 4
        outcomes["reversed"] = comm.allreduce(np.arange(3.0)[::-1]).tolist() == [2 * size, size, 0]
        outcomes["transposed"] = bool((comm.allreduce(matrix.T) == size * matrix.T).all())
        outcomes["empty"] = comm.allreduce(np.zeros(0)).shape == (0,)
        outcomes["big_endian"] = comm.allreduce(np.arange(3, dtype=">i4")).tolist() == [0, size, 2 * size]
        outcomes["scalar"] = float(comm.allreduce(np.array(1.5))) == 1.5 * size
        outcomes["no_entries"] = comm.allreduce((2**40, [], ones(0))).nnz == 0
        odd = comm.allreduce((4, [0, 1, 2], np.array([np.nan, np.inf, -np.inf if rank else np.inf])))
        outcomes["nan_and_infinity"] = str(odd.to_dense().tolist()) == "[nan, inf, nan, 0.0]"
        outcomes["mean"] = comm.allreduce(np.full(3, rank * 1.0), op="avg").tolist() == [(size - 1) / 2] * 3
        outcomes["gathered"] = [x.tolist() for x in comm.allgather(np.arange(rank))] == [
            list(range(r)) for r in range(size)]
        whole = np.arange(11.0)
        outcomes["scattered"] = comm.reduce_scatter(whole).tolist() == (
            size * np.array_split(whole, size)[rank]).tolist()
        for root in range(size):
            x = np.full(3, root * 1.0) if rank == root else np.zeros(3)
            outcomes[f"broadcast_{root}"] = comm.broadcast(x, root=root).tolist() == [root * 1.0] * 3
            total = comm.reduce(np.full(3, 2.0**rank), root=root)
            right = total is None if rank != root else total.tolist() == [2.0**size - 1] * 3
            outcomes[f"reduce_{root}"] = right
        comm.barrier()
        rng = np.random.default_rng(rank)
        for dtype in ("float32", "float64", "float16", "int32", "int64"):
            for k in (0, 10, 5000):
                where = np.sort(rng.choice(10000, k, replace=False))
                x = (10000, where, (rng.normal(size=k) * 9).astype(dtype))
                for name in sw.ALGORITHMS:
                    outcomes[f"bits {name} {dtype} {k}"] = digest(comm.allreduce(x, algorithm=name))
        comm.barrier()
    return outcomes
"""


@functools.cache
def unusual(size):
    ranks = jobs.run(UNUSUAL, size)
    assert all("result" in rank for rank in ranks), ranks
    return [rank["result"] for rank in ranks]


@pytest.mark.parametrize("size", SIZES)
def test_unusual_arrays_and_every_operation_give_the_right_result(size):
    for rank, results in enumerate(unusual(size)):
        wrong = [name for name, ok in results.items() if not name.startswith("bits") and ok is not True]
        assert not wrong, f"rank {rank}: {wrong}"


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", SIZES)
def test_every_rank_has_the_same_bits(size, name):
    first, *others = [
        {case: bits for case, bits in results.items() if case.startswith(f"bits {name} ")}
        for results in unusual(size)
    ]
    assert len(first) == 15
    assert all(other == first for other in others)
