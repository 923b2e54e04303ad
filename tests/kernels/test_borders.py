"""Arguments that no kernel takes: refused alike by every version, and never copied into shape."""

import numpy as np
import pytest
from kernel_cases import each_isa

from sparsewire import kernels

X = np.ones(8, np.float32)
I = np.arange(8, dtype=np.uint32)  # noqa: E741  (I and X: indices and values)
B = np.arange(2)  # numbers of blocks
BYTES = np.zeros(4, np.uint8)
# A matrix: row 0 is columns 4 and 1, row 1 is column 1.  Chosen are row 1, then row 0.
STARTS, COLUMNS, ENTRIES = np.array([0, 2, 3]), np.array([4, 1, 1], np.uint32), np.ones(3)
ROWS, POSITIONS, WEIGHTS = np.array([1, 0]), np.array([0, 1, 0], np.uint32), np.ones(2)


def between_elements(array):
    """The same numbers at an address where no element of that dtype may lie."""
    return np.frombuffer(b"." + array.tobytes(), np.uint8)[1:].view(array.dtype)


WRONG_TYPES = {
    "strided values": lambda: kernels.select(X[::2], 0),
    "strided indices": lambda: kernels.first_invalid(I[::2], 0, 9),
    "misaligned values": lambda: kernels.select(between_elements(X), 0),
    "misaligned indices": lambda: kernels.first_invalid(between_elements(I), 0, 9),
    "two dimensions": lambda: kernels.select(X.reshape(2, 4), 0),
    "a list": lambda: kernels.select([1.0, 2.0], 0),
    "complex values": lambda: kernels.dense_to_sparse(X.astype(np.complex64)),
    "foreign byte order": lambda: kernels.select(X.astype(">f4"), 0),
    "unsigned values": lambda: kernels.threshold_for_k(X.astype(np.uint16), 1),
    "signed indices": lambda: kernels.split_at(I.astype(np.int64), [0]),
    "signed index dtype": lambda: kernels.select(X, 0, index_dtype=np.int64),
    "mixed values": lambda: kernels.accumulate_select(X.copy(), X.astype(np.float64), 0),
    "mixed runs": lambda: kernels.merge_sum([(I, X), (I, X.astype(np.float64))]),
    "mixed indices": lambda: kernels.merge_sum([(I, X), (I.astype(np.uint64), X)]),
    "mixed dense": lambda: kernels.scatter_add(X.astype(np.float64), I, X),
    "wide values to widen": lambda: kernels.widen(X),
    "double values to narrow": lambda: kernels.narrow(X.astype(np.float64), np.float16),
    "narrow to float64": lambda: kernels.narrow(X, np.float64),
    "narrow to foreign byte order": lambda: kernels.narrow(X, ">f2"),
    "strided values to narrow": lambda: kernels.narrow(X[::2], np.float16),
    "double values to quantize": lambda: kernels.quantize(X.astype(np.float64), 4),
    "strided values to quantize": lambda: kernels.quantize(X[::2], 4),
    "signed positions": lambda: kernels.quantize(X, 4, positions=I.astype(np.int64)),
    "positions in a list": lambda: kernels.quantize(X, 4, positions=[0] * 8),
    "float bits": lambda: kernels.quantize(X, 4.0),
    "float key": lambda: kernels.quantize(X, 4, key=1.0),
    "double scales": lambda: kernels.dequantize(X[:1].astype(np.float64), BYTES, 8, 4),
    "signed codes": lambda: kernels.dequantize(X[:1], BYTES.astype(np.int8), 8, 4),
    "signed words": lambda: kernels.decode_bitmap(np.zeros(1, np.int64), 0, 0, 64),
    "strided words": lambda: kernels.decode_elias_fano(np.zeros(4, np.uint64)[::2], 0, 0, 0),
    "signed support": lambda: kernels.encode_bitmap(I.astype(np.int32), 0, 64),
    "signed decoded dtype": lambda: kernels.decode_tiles(np.zeros(1, np.uint64), 0, 0, 64, np.int32),
    "float k": lambda: kernels.threshold_for_k(X, 1.5),
    "float k of a bucket": lambda: kernels.select_buckets(X, 1.5, 4),
    "float bucket": lambda: kernels.select_buckets(X, 1, 4.0),
    "signed indices of buckets": lambda: kernels.select_buckets(X, 1, 4, index_dtype=np.int32),
    "mixed values in buckets": lambda: kernels.accumulate_select_buckets(
        X.copy(), X.astype(np.float64), 1, 4
    ),
    "float block": lambda: kernels.block_norms(X, 4.0),
    "strided blocks": lambda: kernels.block_norms(X[::2], 4),
    "mixed values in blocks": lambda: kernels.accumulate_block_norms(X.copy(), X.astype(np.float16), 4),
    "float block of zeros": lambda: kernels.nonzero_blocks(X, 4.0),
    "strided values to search": lambda: kernels.nonzero_blocks(X[::2], 4),
    "unsigned values to search": lambda: kernels.nonzero_blocks(I, 4),
    "unsigned rows": lambda: kernels.add_blocks(X.copy(), I[:2], X, 4),
    "narrow rows": lambda: kernels.add_blocks(X.copy(), B.astype(np.int32), X, 4),
    "float block to add": lambda: kernels.add_blocks(X.copy(), B, X, 4.0),
    "double blocks to add": lambda: kernels.add_blocks(X.copy(), B, X.astype(np.float64), 4),
    "a total of halves": lambda: kernels.add_blocks(X.astype(np.float16), B, X.astype(np.float16), 4),
    "a double total of halves": lambda: kernels.add_blocks(X.astype(np.float64), B, X.astype(np.float16), 4),
    "unsigned blocks to gather": lambda: kernels.gather_blocks(X, I[:2], 4),
    "blocks in a list": lambda: kernels.gather_blocks(X, [0, 1], 4),
    "strided values to gather": lambda: kernels.gather_blocks(X[::2], B, 2),
    "float block to gather": lambda: kernels.gather_blocks(X, B, 4.0),
    "unsigned blocks to scatter": lambda: kernels.scatter_blocks(X.copy(), I[:2], 4, X),
    "mixed blocks to scatter": lambda: kernels.scatter_blocks(X.copy(), B, 4, X.astype(np.float64)),
    "unsigned values to count": lambda: kernels.histogram(I),
    "strided values to count": lambda: kernels.histogram(X[::2]),
    "signed others": lambda: kernels.without(I, X, I.astype(np.int32)),
    "wider others": lambda: kernels.without(I, X, I.astype(np.uint64)),
    "narrow starts": lambda: kernels.row_columns(STARTS.astype(np.int32), COLUMNS, ROWS, 5),
    "unsigned numbers of rows": lambda: kernels.row_columns(STARTS, COLUMNS, ROWS.astype(np.uint64), 5),
    "rows in a list": lambda: kernels.row_columns(STARTS, COLUMNS, [1, 0], 5),
    "signed columns": lambda: kernels.row_columns(STARTS, COLUMNS.astype(np.int32), ROWS, 5),
    "strided columns": lambda: kernels.row_columns(STARTS, np.repeat(COLUMNS, 2)[::2], ROWS, 5),
    "float width": lambda: kernels.row_columns(STARTS, COLUMNS, ROWS, 5.0),
    "half entries": lambda: kernels.row_products(STARTS, ENTRIES.astype("f2"), ROWS, POSITIONS, WEIGHTS),
    "whole entries": lambda: kernels.row_products(STARTS, ENTRIES.astype("i8"), ROWS, POSITIONS, WEIGHTS),
    "wide positions": lambda: kernels.row_products(STARTS, ENTRIES, ROWS, POSITIONS.astype("u8"), WEIGHTS),
    "single weights": lambda: kernels.row_products(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS.astype("f4")),
    "weights by output": lambda: kernels.row_products(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS[:, None]),
    "float outputs": lambda: kernels.row_products(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS, 1.0),
    "single factors": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS.astype("f4"), 2),
    "factors in a list": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, [1.0, 1.0], 2),
    "float number of columns": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS, 2.0),
}

WRONG_VALUES = {
    "short gradient": lambda: kernels.accumulate_select(X.copy(), X[:4], 0),
    "short values": lambda: kernels.merge_sum([(I, X[:4]), (I, X)]),
    "short entries": lambda: kernels.scatter(X.copy(), I[:4], X),
    "negative offset": lambda: kernels.select(X, 0, offset=-1),
    "negative start": lambda: kernels.first_invalid(I, -1, 5),
    "negative ties": lambda: kernels.select(X, 0, -1),
    "three bits": lambda: kernels.quantize(X, 3),
    "empty buckets": lambda: kernels.quantize(X, 4, bucket=0),
    "an unknown norm": lambda: kernels.quantize(X, 4, norm="1"),
    "a key of 33 bits": lambda: kernels.quantize(X, 4, key=2**32),
    "a negative key": lambda: kernels.quantize(X, 4, key=-1),
    "short positions": lambda: kernels.quantize(X, 4, positions=I[:4]),
    "negative positions": lambda: kernels.quantize(X, 4, positions=-1),
    "positions beyond 64 bits": lambda: kernels.quantize(X, 4, positions=2**64 - 7),
    "no scales": lambda: kernels.dequantize(X[:0], BYTES, 8, 4),
    "too many scales": lambda: kernels.dequantize(X[:2], BYTES, 8, 4),
    "short codes": lambda: kernels.dequantize(X[:1], BYTES[:3], 8, 4),
    "long codes": lambda: kernels.dequantize(X[:1], BYTES, 6, 4),
    "a negative count": lambda: kernels.dequantize(X[:0], BYTES[:0], -1, 4),
    "codes of three bits": lambda: kernels.dequantize(X[:1], BYTES, 8, 3),
    "negative span": lambda: kernels.encode_bitmap(I[:0], 0, -1),
    "negative count": lambda: kernels.decode_bitmap(np.zeros(1, np.uint64), -1, 0, 64),
    "more indices than positions": lambda: kernels.elias_fano_words(3, 2),
    "indices below the range": lambda: kernels.encode_elias_fano(I, 1, 20),
    "indices above the range": lambda: kernels.encode_bitmap(I, 0, 7),
    "indices out of order": lambda: kernels.encode_elias_fano(I[[0, 5, 3, 7]], 0, 20),
    "repeated indices": lambda: kernels.encode_tiles(I[[0, 3, 3, 7]], 0, 20, 1),
    "more tiles than indices": lambda: kernels.encode_tiles(I, 0, 20, 9),
    "tiles behind the first index": lambda: kernels.count_tiles(I, 1),
    "range beyond uint32": lambda: kernels.encode_bitmap(I, 0, 2**32 + 1),
    "range beyond 2^63": lambda: kernels.decode_elias_fano(np.zeros(1, np.uint64), 1, 1, 2**63, np.uint64),
    "no value of a bucket": lambda: kernels.select_buckets(X, 0, 4),
    "a whole bucket": lambda: kernels.select_buckets(X, 4, 4),
    "short gradient in buckets": lambda: kernels.accumulate_select_buckets(X.copy(), X[:4], 1, 4),
    "empty blocks": lambda: kernels.block_norms(X, 0),
    "empty blocks of zeros": lambda: kernels.nonzero_blocks(X, 0),
    "negative blocks of zeros": lambda: kernels.nonzero_blocks(X, -4),
    "empty blocks to add": lambda: kernels.add_blocks(X.copy(), B[:0], X[:0], 0),
    "short blocks to add": lambda: kernels.add_blocks(X.copy(), B, X[:7], 4),
    "long blocks to add": lambda: kernels.add_blocks(X.copy(), B[:1], X, 4),
    "empty blocks to gather": lambda: kernels.gather_blocks(X, B, 0),
    "empty blocks to scatter": lambda: kernels.scatter_blocks(X.copy(), B[:0], 0, X[:0]),
    "short blocks to scatter": lambda: kernels.scatter_blocks(X.copy(), B, 4, X[:7]),
    "short gradient in blocks": lambda: kernels.accumulate_block_norms(X.copy(), X[:4], 4),
    "short values of a run": lambda: kernels.without(I, X[:4], I),
    "negative threshold": lambda: kernels.select(X, -1.0),
    "a row too many": lambda: kernels.row_columns(STARTS, COLUMNS, np.array([2]), 5),
    "a row before the first": lambda: kernels.row_columns(STARTS, COLUMNS, np.array([-1]), 5),
    "a row without starts": lambda: kernels.row_columns(STARTS[:0], COLUMNS, ROWS, 5),
    "a row that ends beyond the columns": lambda: kernels.row_columns(np.array([0, 2, 4]), COLUMNS, ROWS, 5),
    "a row that begins before the columns": lambda: kernels.row_columns(STARTS - 1, COLUMNS, ROWS, 5),
    "a row that ends before it begins": lambda: kernels.row_columns(STARTS[[2, 0, 2]], COLUMNS, ROWS, 5),
    "a column beyond the width": lambda: kernels.row_columns(STARTS, COLUMNS, ROWS, 4),
    "negative width": lambda: kernels.row_columns(STARTS, COLUMNS, ROWS, -1),
    "a row that ends beyond the entries": lambda: kernels.row_products(
        STARTS, ENTRIES[:2], ROWS, POSITIONS, WEIGHTS
    ),
    "a row that begins before the entries": lambda: kernels.row_sums(
        STARTS - 1, ENTRIES, ROWS, POSITIONS, WEIGHTS, 2
    ),
    "few positions": lambda: kernels.row_products(STARTS, ENTRIES, ROWS, POSITIONS[:2], WEIGHTS),
    "positions beyond the weights": lambda: kernels.row_products(
        STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS[:1]
    ),
    "weights of half an output": lambda: kernels.row_products(
        STARTS, ENTRIES, ROWS, POSITIONS, np.ones(5), 2
    ),
    "no outputs": lambda: kernels.row_products(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS, 0),
    "negative outputs": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS, 2, -1),
    "positions beyond the sums": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS, 1),
    "few factors": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS[:1], 2),
    "many factors": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, np.ones(3), 2),
    "negative number of sums": lambda: kernels.row_sums(STARTS, ENTRIES, ROWS, POSITIONS, WEIGHTS, -1),
}


@each_isa
@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_types_are_type_errors(isa, name):
    with kernels.use_isa(isa), pytest.raises(TypeError):
        WRONG_TYPES[name]()


@each_isa
@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_values_are_value_errors(isa, name):
    with kernels.use_isa(isa), pytest.raises(ValueError):
        WRONG_VALUES[name]()


@each_isa
def test_read_only_arrays_are_inputs_but_not_outputs(isa):
    x, i = X.copy(), I.copy()
    x.flags.writeable = i.flags.writeable = False
    with kernels.use_isa(isa):
        kernels.merge_sum([(i, x), (i, x), (i, x)])
        with pytest.raises(ValueError, match="residual is read-only"):
            kernels.accumulate_select(x, x, 0)
        with pytest.raises(ValueError, match="residual is read-only"):
            kernels.accumulate_select_buckets(x, x, 1, 4)
        with pytest.raises(ValueError, match="residual is read-only"):
            kernels.accumulate_block_norms(x, x, 4)
        with pytest.raises(ValueError, match="total is read-only"):
            kernels.add_blocks(x, B, x, 4)
        with pytest.raises(ValueError, match="x is read-only"):
            kernels.scatter_blocks(x, B, 4, x)
        with pytest.raises(ValueError, match="dense is read-only"):
            kernels.scatter(x, i, x)


@each_isa
def test_memory_safety_does_not_hang_on_the_order_of_indices(isa):
    # Unsorted runs have no meaningful sum, but must not write outside the output.
    rng = np.random.default_rng(8)
    for count in (2, 3):
        runs = [
            (rng.integers(0, 9000, 500).astype(np.uint32), np.ones(500, np.float32)) for _ in range(count)
        ]
        with kernels.use_isa(isa):
            indices, _ = kernels.merge_sum(runs)
        assert len(indices) <= 500 * count
    with kernels.use_isa(isa):
        indices, _ = kernels.without(*runs[0], runs[1][0])
    assert len(indices) <= 500
