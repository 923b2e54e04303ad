"""What the hook does while backward goes on, what it says of itself, and that it leaves nothing behind."""

import gc
import os
import sys
import threading

import pytest
import torch
from models import SHAPES, Given, gradients
from training import compressed, named, step_with, wrapped

pytestmark = pytest.mark.torch


# -- overlap -------------------------------------------------------------------------------------


def hold_up_the_last_bucket(group):
    """Backward stands still before its last bucket until the first group has been exchanged."""
    ddp = wrapped(group, Given(), bucket_cap_mb=0.002)
    handle = compressed(ddp, {})
    for step in range(2):
        step_with(ddp, gradients(group.rank(), step))
    is_exchanged = threading.Event()
    iallreduce, on_bucket = handle._comm.iallreduce, handle.on_bucket

    def observed_iallreduce(*args, **kwargs):
        request = iallreduce(*args, **kwargs)
        request.add_done_callback(lambda _: is_exchanged.set())
        return request

    def observed_on_bucket(bucket):
        if bucket.is_last():
            assert bucket.index() > 0
            assert is_exchanged.wait(20)
        return on_bucket(bucket)

    handle._comm.iallreduce, handle.on_bucket = observed_iallreduce, observed_on_bucket
    step_with(ddp, gradients(group.rank(), 2))
    handle.detach()
    return is_exchanged.is_set()


def test_groups_are_exchanged_while_backward_goes_on(ranks):
    assert ranks.run(hold_up_the_last_bucket, size=2) == [True, True]


# -- what it says --------------------------------------------------------------------------------


class Writer:
    """Records what a SummaryWriter would write."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))


def stats_of(group, options):
    ddp = wrapped(group, Given())
    handle = compressed(ddp, options)
    before = handle.stats()
    for step in range(3):
        step_with(ddp, gradients(group.rank(), step))
    writer = Writer()
    handle.log(writer, 7)
    stats, kept = handle.stats(), handle.state_dict()["kept"]
    handle.detach()
    return before, stats, kept, writer.scalars


VALUES = sum(torch.zeros(shape).numel() for shape in SHAPES.values())


@pytest.mark.parametrize("options", [{}, {"method": "ok_topk"}, {"method": "dense"}], ids=named)
def test_stats_count_what_the_latest_step_did(ranks, options):
    everybody = ranks.run(stats_of, options, size=3)
    for before, stats, kept, scalars in everybody:
        assert set(before.values()) == {0, before["dense_bytes"]}
        assert stats["steps"] == 3
        assert stats["dense_bytes"] == pytest.approx(2 * 2 / 3 * 4 * VALUES)
        assert stats["ratio"] == stats["dense_bytes"] / stats["bytes_sent"]
        squares = sum(tensor.double().square().sum().item() for tensor in kept.get("residual", {}).values())
        assert stats["residual_norm"] == pytest.approx(squares**0.5)
        assert stats["waited_s"] > 0
        assert scalars == [(f"sparsewire/{name}", value, 7) for name, value in stats.items()]
    sums = [sum(stats[name] for _, stats, _, _ in everybody) for name in ("bytes_sent", "bytes_received")]
    assert sums[0] == sums[1] > 0


def test_topk_sends_its_density_and_fewer_bytes(ranks):
    for _, stats, _, _ in ranks.run(stats_of, {}, size=2):
        assert stats["density"] == (35 + 55) / (700 + 1100)
        assert stats["ratio"] > 2


def test_one_rank_alone_sends_nothing(ranks):
    [(_, stats, _, _)] = ranks.run(stats_of, {}, size=1)
    assert (stats["bytes_sent"], stats["dense_bytes"], stats["ratio"]) == (0, 0, 0)


def profile(group):
    ddp = wrapped(group, Given(), bucket_cap_mb=0.002)
    handle = compressed(ddp, {})
    for step in range(2):
        step_with(ddp, gradients(group.rank(), step))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step_with(ddp, gradients(group.rank(), 2))
    handle.detach()
    return {event.key for event in profiler.key_averages() if event.key.startswith("sparsewire")}


def test_profiler_shows_buckets_and_the_wait(ranks):
    for ranges in ranks.run(profile, size=2):
        assert {"sparsewire.bucket0", "sparsewire.bucket1", "sparsewire.wait"} <= ranges


# -- what it leaves behind -----------------------------------------------------------------------


def held():
    """Threads and open files of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def train_long(group, steps):
    """Blocks of memory that Python holds after a third of the steps, and after all; and threads and files."""
    ddp = wrapped(group, Given(), bucket_cap_mb=0.002)
    handle = compressed(ddp, {})
    given = gradients(group.rank(), 0)
    records = []
    for step in range(1, steps + 1):
        step_with(ddp, given)
        if step in (steps // 3, steps):
            records.append((held(), sys.getallocatedblocks()))
    handle.detach()
    return records


def test_steps_leave_nothing_behind(ranks):
    for (early, blocks_early), (late, blocks_late) in ranks.run(train_long, 300, size=2):
        assert late == early
        assert blocks_late - blocks_early < 200 * 5  # one exchange has more, and a step has three


def begin_and_end(group, times, is_detached):
    records = []
    for _ in range(times):
        ddp = wrapped(group, Given())
        handle = compressed(ddp, {})
        step_with(ddp, gradients(group.rank(), 0))
        if is_detached:
            handle.detach()
        del ddp, handle
        group.barrier().wait()
        records.append(held())
    return records


@pytest.mark.parametrize("is_detached", [True, False])
def test_models_leave_nothing_behind(ranks, is_detached):
    for (threads, files), *_, (threads_then, files_then) in ranks.run(begin_and_end, 3, is_detached, size=2):
        assert files_then == files
        assert threads_then <= threads + 1  # the last worker may be about to go
