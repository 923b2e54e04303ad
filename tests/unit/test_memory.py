"""Reused memory: arrays are as independent of each other as those of np.empty."""

import gc
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire.kernels import memory

LARGE = memory.SMALL_BYTES


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("count", [0, 1, 7, LARGE, LARGE + 1, 3 * LARGE])
def test_empty_has_the_shape_and_dtype_asked_for(count, dtype):
    array = memory.empty(count, dtype)
    assert array.shape == (count,)
    assert array.dtype == dtype
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_memory_of_a_dead_array_serves_the_next_of_its_size():
    array = memory.empty(LARGE, "uint8")
    where = address(array)
    del array
    gc.collect()
    assert address(memory.empty(LARGE, "uint8")) == where


def test_memory_stays_taken_while_a_view_lives():
    array = memory.empty(LARGE, "float64")
    array[:] = 1
    view = array[10:20].view("uint64")
    expected = view.copy()
    del array
    others = [memory.empty(LARGE, "float64") for _ in range(3)]
    for other in others:
        other[:] = 2
    assert (view == expected).all()


def test_arrays_alive_together_do_not_share_memory():
    arrays = [memory.empty(LARGE + i, "float32") for i in range(8)]
    for value, array in enumerate(arrays):
        array[:] = value
    assert all((array == value).all() for value, array in enumerate(arrays))


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "MAX_KEPT_BYTES", memory._kept_bytes + 3 * LARGE)
    arrays = [memory.empty(LARGE, "uint8") for _ in range(10)]
    del arrays
    gc.collect()
    assert memory._kept_bytes <= memory.MAX_KEPT_BYTES


def test_memory_that_nobody_asks_for_is_given_back(monkeypatch):
    """A record of arrays in use at once does not stay the size of the process."""
    monkeypatch.setattr(memory, "IDLE_S", 0.05)
    monkeypatch.setattr(memory, "_next_tidy", 0.0)
    arrays = [memory.empty(size, "uint8") for size in (LARGE, 2 * LARGE, 3 * LARGE) for _ in range(10)]
    del arrays
    time.sleep(0.1)
    another = memory.empty(5 * LARGE, "uint8")
    del another
    assert memory._kept_bytes == memory._size_class(5 * LARGE)
    assert {size for size, blocks in memory._kept.items() if blocks} == {memory._size_class(5 * LARGE)}


def test_memory_in_use_now_and_then_is_kept(monkeypatch):
    monkeypatch.setattr(memory, "_next_tidy", 0.0)
    array = memory.empty(LARGE, "uint8")
    where = address(array)
    del array
    monkeypatch.setattr(memory, "_next_tidy", 0.0)
    other = memory.empty(7 * LARGE, "uint8")
    del other
    assert address(memory.empty(LARGE, "uint8")) == where


@given(st.integers(1, 2**40))
def test_size_classes_waste_at_most_a_fourth_and_nest(nbytes):
    size = memory._size_class(nbytes)
    assert nbytes <= size <= nbytes * 1.25 + 1
    assert memory._size_class(size) == size


def test_empty_of_more_than_there_is_raises_memory_error():
    with pytest.raises((MemoryError, ValueError)):
        memory.empty(2**62, np.uint8)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9, 10])
def test_used_is_the_beginning_and_lets_go_of_mostly_empty_room(count):
    array = np.arange(10)
    beginning = memory.used(array, count)
    assert beginning.tolist() == list(range(count))
    assert np.shares_memory(beginning, array) == (count >= 5)
