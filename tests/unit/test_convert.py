"""numpy, scipy.sparse and torch in and out: the same numbers, and the same kind of thing back."""

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import sparsewire as sw
from sparsewire.communicator.convert import from_any
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype


def there_and_back(x):
    """What a sum over one rank makes of it."""
    vector, restore = from_any(x)
    return restore(vector.smaller())


# -- numpy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 4), (2, 3, 4), ()])
def test_numpy_array_comes_back_with_shape_and_dtype(shape, dtype):
    x = np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(value_dtype(dtype))
    back = there_and_back(x)
    assert type(back) is np.ndarray
    assert back.shape == x.shape
    assert back.dtype == x.dtype
    assert (back == x).all()


@pytest.mark.parametrize(
    "x",
    [
        np.arange(20, dtype="float32")[::2],
        np.arange(20, dtype="float32")[::-1],
        np.arange(12, dtype="float64").reshape(3, 4).T,
        np.asfortranarray(np.arange(12, dtype="int64").reshape(3, 4)),
        np.arange(5, dtype=">f4"),
        np.broadcast_to(np.float32(2), (4,)),
    ],
    ids=["strided", "reversed", "transposed", "fortran", "big-endian", "broadcast"],
)
def test_numpy_array_of_any_layout_is_understood(x):
    assert (there_and_back(x) == x).all()


def test_numpy_result_is_writable_and_does_not_alias_the_input():
    x = np.ones(5, dtype="float32")
    x.flags.writeable = False
    back = there_and_back(x)
    back[:] = 7
    assert (x == 1).all()


@pytest.mark.parametrize("x", [np.array(["a"]), np.ones(3, bool), np.ones(3, complex), np.ones(3, "uint8")])
def test_numpy_array_of_another_dtype_is_refused_with_the_supported_ones(x):
    with pytest.raises(sw.InputError, match="supported are float32, float64"):
        from_any(x)


@pytest.mark.parametrize("x", [[1.0, 2.0], 3.0, "text", None, {1: 2}, (1, 2)])
def test_other_things_are_refused_with_what_is_accepted(x):
    with pytest.raises(sw.InputError, match=r"numpy array, a torch tensor, a scipy\.sparse"):
        from_any(x)


# -- SparseVector and tuples ---------------------------------------------------------------------


def test_sparse_vector_passes_through():
    vector = SparseVector(4, [1], np.ones(1))
    assert from_any(vector)[0] is vector
    assert there_and_back(vector) is vector


def test_tuple_is_length_indices_values_and_is_checked():
    assert there_and_back((4, [1, 3], np.ones(2))).to_dense().tolist() == [0, 1, 0, 1]
    with pytest.raises(sw.InputError, match=r"indices\[1\] is 1"):
        from_any((4, [3, 1], np.ones(2)))


# -- scipy ---------------------------------------------------------------------------------------

FORMATS = ["coo", "csr", "csc", "lil", "dok", "bsr", "dia"]


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(1, 12), (12, 1), (3, 4)])
def test_scipy_comes_back_in_its_format_and_shape(shape, form, kind):
    dense = np.zeros(12, "float32")
    dense[[1, 5, 11]] = [2, -1, 4]
    x = getattr(sp, f"coo_{kind}")(dense.reshape(shape)).asformat(form)
    back = there_and_back(x)
    assert type(back) is type(x)
    assert back.shape == x.shape
    assert back.dtype == x.dtype
    assert (back.toarray() == x.toarray()).all()


@pytest.mark.parametrize("form", ["coo", "csr"])
def test_scipy_one_dimensional_array_stays_one_dimensional(form):
    x = sp.coo_array(np.array([0, 3.0, 0, 4.0])).asformat(form)
    back = there_and_back(x)
    assert back.shape == (4,)
    assert back.toarray().tolist() == [0, 3, 0, 4]


def test_scipy_duplicates_are_added_up_as_scipy_does_and_the_input_is_left_alone():
    x = sp.coo_array((np.array([1.0, 2.0, 5.0]), ([0, 0, 0], [3, 3, 1])), shape=(1, 4))
    assert there_and_back(x).toarray().tolist() == [[0, 5, 0, 3]]
    assert x.nnz == 3


def test_scipy_matrix_without_entries():
    assert there_and_back(sp.csr_array((1, 9), dtype="float64")).shape == (1, 9)


def test_scipy_result_of_another_length_is_a_row():
    _, restore = from_any(sp.csr_array(np.eye(4)))
    assert restore(SparseVector(5, [2], np.ones(1))).shape == (1, 5)


# -- torch ---------------------------------------------------------------------------------------

TORCH_DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3), ()])
def test_torch_dense_comes_back_with_shape_and_dtype(shape, dtype):
    x = torch.arange(1, 1 + int(np.prod(shape))).reshape(shape).to(dtype)
    back = there_and_back(x)
    assert back.shape == x.shape
    assert back.dtype == dtype
    assert torch.equal(back, x)


def test_torch_tensor_may_be_strided_and_require_grad():
    x = torch.arange(12.0, requires_grad=True).reshape(3, 4).t()
    back = there_and_back(x)
    assert torch.equal(back, x.detach())
    assert not back.requires_grad


def test_torch_parameter_is_a_tensor():
    assert torch.equal(there_and_back(torch.nn.Parameter(torch.ones(3))), torch.ones(3))


def test_torch_result_does_not_alias_the_input():
    x = torch.ones(4)
    there_and_back(x).fill_(7)
    assert torch.equal(x, torch.ones(4))


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch_sparse_coo_comes_back_coalesced(dtype):
    x = torch.sparse_coo_tensor([[7, 2, 7]], torch.tensor([1, 2, 3]).to(dtype), (9,), check_invariants=True)
    back = there_and_back(x)
    assert back.layout == torch.sparse_coo
    assert back.is_coalesced()
    assert back.dtype == dtype
    assert back.indices().tolist() == [[2, 7]]
    assert back.values().tolist() == [2, 4]


def test_torch_sparse_matrix_keeps_its_shape():
    x = torch.sparse_coo_tensor([[0, 2], [1, 3]], [5.0, 6.0], (3, 4), check_invariants=True)
    assert torch.equal(there_and_back(x).to_dense(), x.to_dense())


def test_torch_embedding_gradient_keeps_whole_rows():
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([4, 1, 4])).sum().backward()
    gradient = embedding.weight.grad
    back = there_and_back(gradient)
    assert (back.sparse_dim(), back.dense_dim()) == (1, 1)
    assert back.indices().tolist() == [[1, 4]]
    assert torch.equal(back.to_dense(), gradient.to_dense())


def test_torch_row_with_a_zero_in_it_stays_a_row():
    x = torch.sparse_coo_tensor([[3]], torch.tensor([[0.0, 2.0]]), (5, 2), check_invariants=True)
    assert there_and_back(x).values().tolist() == [[0, 2]]


def test_torch_rows_survive_a_dense_result():
    x = torch.sparse_coo_tensor([[0]], torch.ones(1, 2), (3, 2), check_invariants=True)
    _, restore = from_any(x)
    back = restore(SparseVector.from_dense(np.array([1, 2, 0, 0, 0, 3], "float32")))
    assert back.indices().tolist() == [[0, 2]]
    assert back.values().tolist() == [[1, 2], [0, 3]]


@pytest.mark.parametrize("row", [(), (2,)])
def test_torch_sparse_result_does_not_alias_the_input(row):
    x = torch.sparse_coo_tensor(
        [[1]], torch.ones(1, *row), (3, *row), is_coalesced=True, check_invariants=True
    )
    there_and_back(x).values().fill_(7)
    assert (x.values() == 1).all()


@pytest.mark.parametrize("dense", [[0, 1, 2, 0], [1, 0, 2, 0], [1, 2, 0, 0], [0, 1, 0, 2], [0, 0, 0, 0]])
def test_torch_rows_are_told_apart_where_entries_are_missing(dense):
    x = torch.sparse_coo_tensor([[0]], torch.ones(1, 2), (2, 2), check_invariants=True)
    _, restore = from_any(x)
    back = restore(SparseVector.from_dense(np.array(dense, "float32")).as_sparse())
    assert back.to_dense().flatten().tolist() == dense
    assert back.indices().tolist() == [[row for row in (0, 1) if any(dense[2 * row : 2 * row + 2])]]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_torch_sparse_tensor_may_have_no_sparse_dimension(shape):
    nowhere = torch.zeros(0, 2, dtype=torch.int64)
    x = torch.sparse_coo_tensor(nowhere, torch.ones(2, *shape), shape, check_invariants=True)
    back = there_and_back(x)
    assert (back.sparse_dim(), back.dense_dim()) == (0, len(shape))
    assert torch.equal(back.to_dense(), torch.full(shape, 2.0))


def test_torch_sparse_tensor_without_entries():
    x = torch.sparse_coo_tensor(
        torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (4,), check_invariants=True
    )
    assert there_and_back(x).shape == (4,)


def test_torch_other_layouts_are_refused():
    with pytest.warns(UserWarning, match="beta"):
        compressed = torch.eye(3).to_sparse_csc()
    with pytest.raises(sw.InputError, match="strided or sparse_coo"):
        from_any(compressed)


def test_bfloat16_bits_are_kept():
    x = torch.tensor([1.5, -0.0, float("inf"), 3e-39], dtype=torch.bfloat16)
    vector, _ = from_any(x)
    assert vector.dtype == ml_dtypes.bfloat16
    assert vector.values.view(np.int16).tolist() == x.view(torch.int16).tolist()
