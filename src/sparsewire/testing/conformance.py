"""What every driver has to do, as a list of checks that raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsewire.algorithms import ALGORITHMS
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import PRECISIONS, TwoLevels
from sparsewire.steps import Recv, RecvAny, Send, Steps
from sparsewire.testing.oracles import ORACLES, dense, same_bits
from sparsewire.testing.ranks import MakeScript, RunRanks
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype

__all__ = ["DRIVER_CHECKS", "check_driver"]

SIZES = (1, 2, 3, 4, 5)


def check_driver(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """Raise if a driver breaks the contract of ``steps`` in a group of one of these sizes.

    ``run_ranks(make_script, size)`` runs ``make_script(rank, size)`` on every rank and returns the results
    in rank order.  If any rank raises it has to raise too, once every rank has ended.
    """
    for check in DRIVER_CHECKS:
        check(run_ranks, sizes)


def _number(value: int) -> SparseVector:
    return SparseVector.from_dense(np.array([value], np.int64))


def _value(piece: SparseVector) -> int:
    return int(piece.values[0])


def _others(rank: int, size: int) -> list[int]:
    return [peer for peer in range(size) if peer != rank]


def _with_peers(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size > 1]


def check_a_script_without_peers_ends(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """A round may be empty, and so may a script."""

    def script(rank: int, size: int) -> Steps[int]:
        received = yield []
        assert received == []
        return 10 * size + rank

    for size in sizes:
        assert run_ranks(script, size) == [10 * size + rank for rank in range(size)]


def check_messages_keep_their_order(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """Between two ranks, within a round and from round to round, in both directions."""
    count = 12

    def script(rank: int, size: int) -> Steps[list[list[int]]]:
        seen: list[list[int]] = []
        peers = _others(rank, size)
        for turn in range(3):
            sends = [Send(peer, _number(turn * count + i)) for i in range(count) for peer in peers]
            pieces = yield [*sends, *(Recv(peer) for peer in peers for _ in range(count))]
            seen.append([_value(piece) for piece in pieces])
        return seen

    for size in sizes:
        for seen in run_ranks(script, size):
            for turn, numbers in enumerate(seen):
                assert numbers == [turn * count + i for _ in range(size - 1) for i in range(count)]


def check_early_messages_wait(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """A message that arrives before its round is kept for it, and other ranks' do not overtake it."""

    def script(rank: int, size: int) -> Steps[list[int]]:
        if rank:
            yield [Send(0, _number(100 * rank + i)) for i in range(4)]
            return []
        seen = []
        for i in range(4):
            for peer in range(size - 1, 0, -1):
                [piece] = yield [Recv(peer)]
                seen.append(_value(piece) - (100 * peer + i))
        return seen

    for size in _with_peers(sizes):
        assert run_ranks(script, size)[0] == [0] * (4 * (size - 1))


def check_everybody_to_everybody(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """Payloads come in the order in which the receives are listed, whoever is first."""

    def script(rank: int, size: int) -> Steps[list[int]]:
        total: list[int] = []
        for turn in range(4):
            peers = _others(rank, size)[:: -1 if turn % 2 else 1]
            steps = [Recv(peer) for peer in peers] + [
                Send(p, _number(turn * 100 + rank * 10 + p)) for p in peers
            ]
            pieces = yield steps
            total += [
                _value(piece) - (turn * 100 + peer * 10 + rank)
                for peer, piece in zip(peers, pieces, strict=True)
            ]
        return total

    for size in sizes:
        assert run_ranks(script, size) == [[0] * (4 * (size - 1))] * size


def check_one_sided_rounds(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """A chain: each rank only receives, then only sends."""

    def script(rank: int, size: int) -> Steps[int]:
        token = 1
        if rank:
            [piece] = yield [Recv(rank - 1)]
            token = _value(piece) * 3
        if rank + 1 < size:
            yield [Send(rank + 1, _number(token))]
        return token

    for size in sizes:
        assert run_ranks(script, size) == [3**rank for rank in range(size)]


def check_receive_from_anybody(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """Rank 0 serves whoever speaks first, and each rank's own messages stay in order."""
    count = 5

    def script(rank: int, size: int) -> Steps[Any]:
        if rank:
            answers = []
            for i in range(count):
                [piece] = yield [Send(0, _number(i)), Recv(0)]
                answers.append(_value(piece))
            return answers
        heard: dict[int, list[int]] = {peer: [] for peer in range(1, size)}
        for _ in range(count * (size - 1)):
            [(source, piece)] = yield [RecvAny()]
            heard[source].append(_value(piece))
            yield [Send(source, _number(1000 * source + _value(piece)))]
        return heard

    for size in sizes:
        heard, *answers = run_ranks(script, size)
        assert heard == {peer: list(range(count)) for peer in range(1, size)}
        assert answers == [[1000 * peer + i for i in range(count)] for peer in range(1, size)]


def check_every_kind_of_payload(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """What is sent arrives with the same bits, range, form and index width."""
    payloads = _payloads()

    def script(rank: int, size: int) -> Steps[list[bool]]:
        alike = []
        left, right = (rank - 1) % size, (rank + 1) % size
        for payload in payloads:
            [got] = yield [Send(right, payload), Recv(left)]
            assert isinstance(got, list) == isinstance(payload, list)
            wanted, pieces = (payload, got) if isinstance(payload, list) else ([payload], [got])
            alike.append(len(wanted) == len(pieces) and all(map(same_bits, wanted, pieces)))
        return alike

    for size in _with_peers(sizes):
        for alike in run_ranks(script, size):
            assert all(alike), f"changed on the way: {[payloads[i] for i, ok in enumerate(alike) if not ok]}"


def _payloads() -> list[SparseVector | list[SparseVector]]:
    payloads: list[SparseVector | list[SparseVector]] = []
    for name in VALUE_DTYPES:
        numbers = np.arange(-3, 4).astype(value_dtype(name))
        sparse = SparseVector(1000, [0, 1, 2, 500, 501, 998, 999], numbers)
        wide = SparseVector(2**40, [0, 1, 2**31, 2**32 - 1, 2**32, 2**39, 2**40 - 1], numbers)
        whole = SparseVector.from_dense(numbers)
        payloads += [
            sparse,
            wide,
            whole,
            sparse.range(1, 999),
            wide.range(2**31, 2**39),
            whole.range(2, 5),
            sparse.range(10, 20),
            whole.range(3, 3),
            SparseVector.empty(0, numbers.dtype),
            SparseVector.empty(2**40, numbers.dtype),
            [sparse],
            sparse.split_evenly(5),
            [whole, wide, SparseVector.empty(5, numbers.dtype), sparse],
        ]
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324])
    payloads += [SparseVector.from_dense(odd), SparseVector(9, range(6), odd)]
    # Every form of a support, as it is and in every precision.
    precisions = [*PRECISIONS.values(), TwoLevels()]
    for length, support in ((9000, range(0, 9000, 70)), (90, range(1, 90, 3)), (9000, range(3000, 3300))):
        sparse = SparseVector(length, support, np.linspace(-2, 1, len(support)))
        payloads += [sparse, *(rounded(sparse, precision, (0, 0, 0)) for precision in precisions)]
    return payloads


def check_large_payloads_cross(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """Several MB in all directions at once: nobody may wait to read until its own is written."""
    count = 2**20

    def script(rank: int, size: int) -> Steps[list[bool]]:
        mine = SparseVector.from_dense(np.full(count, rank, np.float64))
        peers = _others(rank, size)
        pieces = yield [Send(peer, mine) for peer in peers] + [Recv(peer) for peer in peers]
        return [bool((p.values == peer).all()) for peer, p in zip(peers, pieces, strict=True)]

    for size in [size for size in sizes if size in (2, 3)]:
        assert run_ranks(script, size) == [[True] * (size - 1)] * size


def check_received_payloads_are_kept(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """A payload is a value: later messages do not change it."""

    def script(rank: int, size: int) -> Steps[list[int]]:
        pieces = []
        for i in range(50):
            got = yield [Send((rank + 1) % size, _number(i)), Recv((rank - 1) % size)]
            pieces += got
        return [_value(piece) for piece in pieces]

    for size in _with_peers(sizes):
        assert run_ranks(script, size) == [list(range(50))] * size


def check_a_failing_script_fails_every_rank(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """One rank's script raises while the others wait for it: all end, none hangs."""

    def script(rank: int, size: int) -> Steps[None]:
        yield [Send(peer, _number(0)) for peer in _others(rank, size)] + [
            Recv(p) for p in _others(rank, size)
        ]
        if rank == size - 1:
            raise ZeroDivisionError("on purpose, in a test")
        yield [Recv(size - 1)]

    for size in sizes:
        _assert_raises(run_ranks, script, size, "a script raised")


def check_nonsense_peers_are_refused(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """Sending to oneself or to a rank that does not exist is an error."""

    def check(size: int, nonsense: int) -> None:
        def script(rank: int, size: int) -> Steps[None]:
            yield [Send(nonsense, _number(0))] if rank == 0 else [Recv(0)]

        _assert_raises(run_ranks, script, size, f"rank 0 of {size} sent to rank {nonsense}")

    for size in sizes:
        for nonsense in (0, size, -1):
            check(size, nonsense)


def _assert_raises(run_ranks: RunRanks, script: MakeScript, size: int, what: str) -> None:
    try:
        run_ranks(script, size)
    except Exception:
        return
    raise AssertionError(f"{what}, and run_ranks did not raise")


def check_every_algorithm_agrees(run_ranks: RunRanks, sizes: Sequence[int] = SIZES) -> None:
    """The right sum, and the same bits on every rank and in a second run, for the whole table."""
    length = 60

    def vectors(size: int) -> list[SparseVector]:
        ranges = [range(rank, length, 2 + rank) for rank in range(size)]
        return [SparseVector(length, r, np.full(len(r), 2.0**i, np.float32)) for i, r in enumerate(ranges)]

    def check(name: str, size: int) -> None:
        inputs = vectors(size)

        def script(rank: int, size: int) -> Steps[SparseVector]:
            return ALGORITHMS[name].run(rank, size, inputs[rank])

        first, *rest = [*run_ranks(script, size), *run_ranks(script, size)]
        assert all(same_bits(first, other) for other in rest), f"{name}: bits differ"
        assert np.array_equal(dense(first), ORACLES[name](inputs)), f"{name}: wrong sum"

    for name in ALGORITHMS:
        for size in sizes:
            check(name, size)


DRIVER_CHECKS: tuple[Callable[[RunRanks, Sequence[int]], None], ...] = (
    check_a_script_without_peers_ends,
    check_messages_keep_their_order,
    check_early_messages_wait,
    check_everybody_to_everybody,
    check_one_sided_rounds,
    check_receive_from_anybody,
    check_every_kind_of_payload,
    check_large_payloads_cross,
    check_received_payloads_are_kept,
    check_a_failing_script_fails_every_rank,
    check_nonsense_peers_are_refused,
    check_every_algorithm_agrees,
)
