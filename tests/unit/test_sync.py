"""Whole training steps over a communicator: nothing is lost, all ranks agree, and failures cost nothing."""

import copy
import re

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.compress import BlockTopK, BucketTopK, Quantized, RandomK, TopK, Warmup
from sparsewire.testing import RankErrors, run_program

LENGTH = 600
MORE = {
    "buckets": sw.Method(lambda density: BucketTopK(2, 64), "auto"),
    "blocks": sw.Method(lambda density: BlockTopK(density, block=16), "split_allgather"),
    "quantized": sw.Method(lambda density: Quantized(TopK(density), "qsgd4"), "allgather_sum"),
}


def gradient(rank, step, length=LENGTH, dtype=np.float64):
    chance = np.random.default_rng([rank, step])
    return (chance.standard_normal(length) * np.linspace(0.1, 3, length)).astype(dtype)


def bits(vector):
    return vector.indices.tobytes(), vector.values.tobytes()


@pytest.mark.parametrize("size", range(1, 10))
def test_nothing_is_lost_and_all_ranks_have_the_same_mean(size):
    methods = {**{name: name for name in sw.METHODS}, **MORE}

    def program(comm):
        steps = {}
        for name, method in methods.items():
            sync = sw.Sync(comm, method, 0.05)
            state = sync.init(LENGTH, "float64")
            for step in range(4):
                before = state.compressor.residual.copy()
                mean, state = sync.step(gradient(comm.rank, step), state)
                moved = before + gradient(comm.rank, step) - state.compressor.residual
                steps[name, step] = moved, mean, state.regions
        return steps

    everybody = run_program(program, size)
    for key, (_, mean, regions) in everybody[0].items():
        assert {bits(steps[key][1]) for steps in everybody} == {bits(mean)}, key
        assert all(steps[key][2] == regions for steps in everybody)
        moved = sum(steps[key][0] for steps in everybody)
        assert np.allclose(moved, size * mean.to_dense(), rtol=0, atol=1e-12 * size), key


def test_the_methods_with_a_global_selection_return_k_entries():
    def program(comm):
        counts = []
        for name in ("ok_topk", "gtopk"):
            sync = sw.Sync(comm, name, Warmup(0.01, steps=3))
            state = sync.init(LENGTH)
            for step in range(5):
                k = sync.k(LENGTH, state)
                mean, state = sync.step(gradient(comm.rank, step, dtype=np.float32), state)
                counts.append((k, mean.nnz))
        return counts

    for counts in run_program(program, 3):
        assert all(k == nnz for k, nnz in counts)
        assert [k for k, _ in counts[:5]] == [150, 51, 17, 6, 6]


def test_random_k_sends_no_indices():
    def program(comm):
        sync = sw.Sync(comm, sw.Method(RandomK, "dense_ring"), 0.5)
        sync.step(gradient(comm.rank, 0), sync.init(LENGTH, "float64"))
        return comm.last.nnz_in, comm.last.density_in

    assert run_program(program, 2) == [(LENGTH // 2, 1.0)] * 2


def test_a_checkpoint_continues_bit_for_bit():
    def program(comm):
        sync = sw.Sync(comm, "ok_topk", 0.05, momentum=0.5)
        state = sync.init(LENGTH)
        for step in range(3):
            _, state = sync.step(gradient(comm.rank, step, dtype=np.float32), state)
        restored = sync.init(LENGTH).load_state_dict(state.state_dict())
        assert restored.regions == state.regions
        runs = []
        for current in (state, restored):
            for step in range(3, 6):
                mean, current = sync.step(gradient(comm.rank, step, dtype=np.float32), current)
            runs.append((bits(mean), current.compressor.residual.tobytes()))
        return runs[0] == runs[1]

    assert run_program(program, 3) == [True] * 3


def test_a_checkpoint_of_more_ranks_is_welcome():
    def first(comm):
        sync = sw.Sync(comm, "ok_topk", 0.05)
        return sync.step(gradient(comm.rank, 0), sync.init(LENGTH, "float64"))[1].state_dict()

    saved = run_program(first, 3)

    def second(comm):
        sync = sw.Sync(comm, "ok_topk", 0.05)
        state = sync.init(LENGTH, "float64").load_state_dict(saved[comm.rank])
        return sync.step(gradient(comm.rank, 1), state)[0].nnz

    assert run_program(second, 2) == [30, 30]


def failed(program, size):
    with pytest.raises(RankErrors) as caught:
        run_program(program, size, timeout=20)
    errors = caught.value.errors
    assert sorted(errors) == list(range(size)), "some rank did not notice"
    return errors


def test_a_gradient_that_is_not_finite_is_refused_on_every_rank_on_request():
    def program(comm):
        sync = sw.Sync(comm, "ok_topk", 0.05, check_finite=True)
        x = gradient(comm.rank, 0)
        if comm.rank == 1:
            x[17] = np.nan
        sync.step(x, sync.init(LENGTH, "float64"))

    for error in failed(program, 3).values():
        assert isinstance(error, sw.InputError)
        assert "rank 1: the accumulated gradient is nan at index 17" in str(error)


def test_gradients_of_the_wrong_kind_are_refused_on_every_rank_and_the_next_step_is_made():
    spoilt = {
        "rank 1: .*contiguous": lambda x: np.repeat(x, 2)[::2],
        "rank 1: the state is for 600 float64 values and the gradient has 599": lambda x: x[:-1],
        "rank 1: .*600 float32 values": lambda x: x.astype(np.float32),
        "rank 1: ": lambda x: x.tolist(),
    }

    def program(comm):
        sync, x, said = sw.Sync(comm, "gtopk", 0.05), gradient(comm.rank, 0), []
        for spoil in spoilt.values():
            with pytest.raises(sw.InputError) as raised:
                sync.step(spoil(x) if comm.rank == 1 else x, sync.init(LENGTH, "float64"))
            said.append(str(raised.value))
        mean, _ = sync.step(x, sync.init(LENGTH, "float64"))
        return said, mean.nnz

    for said, nnz in run_program(program, 3):
        assert nnz == 30
        for message, text in zip(spoilt, said, strict=True):
            assert re.search(message, text)


def test_a_gradient_that_is_not_finite_reaches_everybody_by_default():
    def program(comm):
        sync = sw.Sync(comm, "ok_topk", 0.05)
        x = gradient(comm.rank, 0)
        x[17 * comm.rank] = np.inf if comm.rank else np.nan
        mean, _ = sync.step(x, sync.init(LENGTH, "float64"))
        return mean.to_dense()[[0, 17]]

    for values in run_program(program, 2):
        assert np.isnan(values[0])
        assert values[1] == np.inf


def test_ranks_that_disagree_all_hear_it_and_lose_nothing():
    kept = {}

    def program(comm):
        sync = sw.Sync(comm, "ok_topk", 0.05 if comm.rank else 0.1)
        state = sync.init(LENGTH, "float64")
        try:
            sync.step(gradient(comm.rank, 0), state)
        finally:
            kept[comm.rank] = np.array_equal(state.compressor.residual, gradient(comm.rank, 0))

    for error in failed(program, 2).values():
        assert isinstance(error, sw.CallMismatchError)
        assert "k=30" in str(error)
        assert "k=60" in str(error)
    assert kept == {0: True, 1: True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "topk"}, "unknown method 'topk'; known are ok_topk, gtopk"),
        ({"method": sw.Method(TopK, "ring")}, "unknown algorithm 'ring'; known are auto"),
        ({"density": 0}, "density is 0"),
        ({"density": 1.5}, "density is 1.5"),
        ({"density": float("nan")}, "density is nan"),
        ({"momentum": 1.0}, "momentum is 1.0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with sw.init() as comm, pytest.raises(sw.InputError, match=message):
        sw.Sync(comm, **arguments)


def test_a_gradient_of_another_tensor_is_refused():
    with sw.init() as comm:
        sync = sw.Sync(comm)
        state = sync.init(500)
        with pytest.raises(
            sw.InputError, match=r"the state is for 500 float32 values and the gradient has 600"
        ):
            sync.step(gradient(0, 0, dtype=np.float32), state)


@pytest.mark.parametrize("k", [0, -1, 2.5, None])
def test_k_must_be_a_number_of_entries(k):
    with sw.init() as comm, pytest.raises(sw.InputError, match="k is"):
        comm.allreduce_topk(np.ones(10), k)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_auto_takes_one_of_the_table_and_the_same_on_all_ranks(size):
    def program(comm):
        x = gradient(comm.rank, 0)
        chosen = comm.allreduce_topk(x, 30, algorithm="auto")
        name = comm.last.algorithm
        return name, bits(chosen.total), bits(comm.allreduce_topk(x, 30, algorithm=name).total)

    everybody = run_program(program, size)
    name, auto, by_name = everybody[0]
    assert name in sw.TOPK_ALGORITHMS
    assert auto == by_name
    assert all(told == everybody[0] for told in everybody)


def test_an_unknown_sum_of_the_largest_entries_is_refused():
    with sw.init() as comm, pytest.raises(sw.InputError, match="known are auto, ok_topk, gtopk, spardl"):
        comm.allreduce_topk(np.ones(10), 3, algorithm="topk")


def test_regions_of_another_vector_are_refused():
    with sw.init() as comm:
        regions = comm.allreduce_topk(np.ones(10), 3).regions
        with pytest.raises(
            sw.InputError, match=r"1 of a vector of 10, and these are 1 ranks and a vector of 12"
        ):
            comm.allreduce_topk(np.ones(12), 3, regions=regions)


def test_a_step_is_a_function_of_gradient_and_state():
    with sw.init() as comm:
        sync = sw.Sync(comm, "ok_topk", 0.05)
        _, state = sync.step(gradient(0, 0), sync.init(LENGTH, "float64"))
        again = copy.deepcopy(state)
        x = gradient(0, 1)
        x.flags.writeable = False
        assert bits(sync.step(x, state)[0]) == bits(sync.step(x, again)[0])


@pytest.mark.parametrize(
    "saved",
    [
        "text",
        {},
        {"step": 1, "compressor": {}, "regions": None},
        {"regions": [1, 0, 4]},
        {"regions": [1, 3, 2, 4]},
        {"regions": [1, 1, 4]},
        {"regions": [-1, 0, 4]},
        {"regions": "text"},
        {"regions": [1.5, 0, 4]},
        {"regions": []},
    ],
)
def test_a_foreign_checkpoint_is_refused(saved):
    with sw.init() as comm:
        state = sw.Sync(comm, "ok_topk", density=0.5).init(4)
        if isinstance(saved, dict) and saved.keys() == {"regions"}:
            right, saved = saved == {"regions": [1, 0, 4]}, state.state_dict() | saved
            if right:
                assert state.load_state_dict(saved).regions.cuts == (0, 4)
                return
        with pytest.raises(sw.InputError):
            state.load_state_dict(saved)
