"""What OmniReduce costs: colocated, and with aggregators of their own (``Shape.aggregators``).

In units of what a dense vector takes on a link, with D and U the densities of a vector and of the sum:
colocated (P-1)/P (D + U), because each rank sends its own and its share of the sums; dedicated
max(U, P U / A), because contributions go one way and sums the other.  Beside them, messages and computing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from sparsewire.algorithms.omnireduce.pairs import STRIPE_ENTRIES, Stripes
from sparsewire.algorithms.omnireduce.script import OmniReduce
from sparsewire.cost import BLOCK, HEADER_BYTES, Cost, CostFigures, Shape
from sparsewire.work import Work

__all__ = ["best_block", "cost", "tune"]

MESSAGE_BYTES = HEADER_BYTES + 24  # the first part of a message
NUMBERS_BYTES = 12  # the numbers of a block: column, current, next


class Flow(NamedTuple):
    """What goes from a worker to an aggregator, or back."""

    messages: int
    nbytes: int

    @classmethod
    def of(cls, messages: int, body_bytes: int) -> Flow:
        """So many messages with this in each."""
        return cls(messages, messages * (MESSAGE_BYTES + body_bytes))

    def times(self, times: int) -> Flow:
        return Flow(times * self.messages, times * self.nbytes)


def cost(figures: CostFigures, shape: Shape) -> Cost:
    block = best_block(figures, shape)
    return _pairs(figures, shape) if block is None else _blocks(figures, shape)


def best_block(figures: CostFigures, shape: Shape) -> int | None:
    """The size of blocks, or None where entries are better one by one."""
    if shape.blocks is None or _pairs(figures, shape).seconds <= _blocks(figures, shape).seconds:
        return None
    return BLOCK


def tune(figures: CostFigures, shape: Shape) -> OmniReduce:
    """The options of the lowest predicted time."""
    return OmniReduce(best_block(figures, shape))


def _pairs(figures: CostFigures, shape: Shape) -> Cost:
    servers = shape.aggregators or shape.size
    stripes = Stripes(shape.length, servers)
    span, moving = stripes.share, STRIPE_ENTRIES * stripes.count
    width = OmniReduce().terms(shape.length, shape.value_bytes, servers).width
    union = shape.union(shape.size)
    share, owned = (min(entries / servers, span) for entries in (shape.nnz, union))
    of_share = replace(shape, length=span)
    turns_dense = shape.is_dense(union, shape.length)  # when the sum is complete
    pieces = max(1, math.ceil(share / width))
    # A sum reaches as far as the shortest of everybody's pieces; if those are alike, that is one each.
    sums = pieces if pieces == 1 else round(pieces * max(1, min(shape.size, owned / share)))
    return _streamed(
        figures,
        shape,
        Flow.of(pieces, of_share.sparse_frame_bytes(share / pieces, span / pieces)),
        Flow.of(sums, of_share.sparse_frame_bytes(owned / sums, span / sums)),
        before=Work(moving, 2 * shape.nnz),
        adding=Work(shape.nnz * shape.size / servers),
        after=Work(
            moving + (union if turns_dense else 0), 2 * union + (2 * shape.length if turns_dense else 0)
        ),
    )


def _blocks(figures: CostFigures, shape: Shape) -> Cost:
    assert shape.blocks is not None
    servers = shape.aggregators or shape.size
    width = OmniReduce(BLOCK).terms(shape.length, shape.value_bytes, servers).width
    every = -(-shape.length // BLOCK)
    in_blocks = replace(shape, length=every, nnz=min(shape.blocks, every), union_nnz=None)
    share, owned = in_blocks.nnz / servers, in_blocks.union(shape.size) / servers
    row = BLOCK * shape.value_bytes + NUMBERS_BYTES
    flows = [
        Flow.of(count := max(1, math.ceil(blocks / width)), round(blocks / count * row) + HEADER_BYTES)
        for blocks in (share, owned)
    ]
    return _streamed(
        figures,
        shape,
        *flows,
        before=Work(values=shape.length + BLOCK * in_blocks.nnz),
        adding=Work(values=BLOCK * share * (shape.size - 1)),
        after=Work(values=shape.length + BLOCK * owned * servers),
    )


def _streamed(
    figures: CostFigures, shape: Shape, up: Flow, down: Flow, *, before: Work, adding: Work, after: Work
) -> Cost:
    """Contributions and sums on their way at once, as soon as there are several messages of each."""
    others = shape.size - 1
    if shape.aggregators:
        way_up = [up.times(shape.aggregators), up.times(shape.size)]  # from a worker, and to an aggregator
        way_down = [down.times(shape.size), down.times(shape.aggregators)]
        sent = max(way_up[0], way_down[0])
        phases = [max(figures.seconds(*flow) for flow in way) for way in (way_up, way_down)]
        moving = figures.pipelined(max(phases), min(phases), min(up.messages, down.messages))
    elif not others:
        return Cost(figures.computing(before) + figures.computing(after), 0, 0, 0)
    else:
        sent = Flow(up.messages + down.messages, up.nbytes + down.nbytes).times(others)
        moving = figures.seconds(*sent)
    computing = [figures.computing(work) for work in (before, adding, after)]
    return Cost(
        seconds=computing[0]
        + 2 * figures.latency
        + figures.pipelined(moving, computing[1], min(up.messages, down.messages))
        + computing[2],
        rounds=1 + others * (2 * up.messages + down.messages),  # each that is sent at first is one, too
        messages=sent.messages,
        bytes_sent=sent.nbytes,
    )
