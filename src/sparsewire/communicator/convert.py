"""numpy, scipy.sparse and torch in and out: the sum comes back as the kind of thing that went in.

scipy and torch are not imported here unless one of their objects shows up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.vector import Array, SparseVector, value_dtype

__all__ = ["Restore", "from_any", "into", "numpy_to_tensor", "tensor_to_numpy"]

Restore: TypeAlias = Callable[[SparseVector], Any]


def from_any(x: Any) -> tuple[SparseVector, Restore]:
    """``x`` as a vector, and the function that makes a vector into the kind of thing that ``x`` is.

    >>> vector, restore = from_any(np.array([[0.0, 1.0], [2.0, 0.0]]))
    >>> vector, restore(vector)
    (SparseVector(length=4, dense, float64), array([[0., 1.],
           [2., 0.]]))
    """
    if isinstance(x, SparseVector):
        return x, SparseVector.own
    if isinstance(x, np.ndarray):
        return SparseVector.from_dense(x.reshape(-1)), _to_numpy(x)
    if isinstance(x, tuple) and len(x) == 3:
        return SparseVector(*x), SparseVector.own
    package = type(x).__module__.partition(".")[0]
    if package == "scipy":
        return _from_scipy(x)
    if package == "torch" or any(c.__module__ == "torch" for c in type(x).__mro__):
        return _from_torch(x)
    raise InputError(
        f"{type(x).__name__} cannot be summed; give a numpy array, a torch tensor, a scipy.sparse matrix, "
        "a SparseVector or a tuple (length, indices, values)"
    )


def into(out: Any, vector: SparseVector) -> tuple[Array, Restore]:
    """The memory of ``out`` as a flat array, and the function that writes a result like ``vector`` there.

    >>> flat, write = into(np.empty(2), SparseVector(2, [1], np.array([5.0])))
    >>> write(SparseVector(2, [0], np.array([7.0])))
    array([7., 0.])
    """
    is_tensor = type(out).__module__.partition(".")[0] == "torch"
    if is_tensor and out.device.type != "cpu":
        raise InputError(f"out is on {out.device}; results are written to memory of the CPU")
    array = tensor_to_numpy(out.detach()) if is_tensor else out
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        raise InputError(f"out is a {type(out).__name__}; give a contiguous array or tensor to write to")
    if (array.size, array.dtype) != (vector.length, vector.dtype):
        raise InputError(
            f"out has {array.size:,} values of {array.dtype.name}, and the result {vector.length:,} of "
            f"{vector.dtype.name}"
        )
    flat = array.reshape(-1)
    if is_tensor and out.numel() and flat.ctypes.data != out.data_ptr():
        raise InputError("out is not contiguous; give a tensor that is")

    def write(result: SparseVector) -> Any:
        if result.indices is not None:
            kernels.spread(flat, result.indices, result.values)
        elif result.values.ctypes.data != flat.ctypes.data:
            flat[:] = result.values
        return out

    return flat, write


def _to_numpy(x: Array) -> Restore:
    def restore(vector: SparseVector) -> Array:
        dense = _own_array(vector, x)
        return dense.reshape(x.shape) if dense.size == x.size else dense

    return restore


def _own_array(vector: SparseVector, given: Array) -> Array:
    """The vector as an array that its new owner may write to, and that is not what was given."""
    dense = vector.to_dense()
    if np.may_share_memory(dense, given) or not dense.flags.writeable:
        return dense.copy()
    return dense


def _from_scipy(x: Any) -> tuple[SparseVector, Restore]:
    """Any scipy.sparse shape, row by row; like scipy itself, duplicates are added up."""
    import scipy.sparse as sp

    if not sp.issparse(x):
        raise InputError(f"{type(x).__name__} is not a scipy.sparse matrix or array")
    coo = x.tocoo(copy=True)
    coo.sum_duplicates()
    flat = np.ravel_multi_index(coo.coords, coo.shape) if coo.nnz else np.empty(0, np.int64)
    order = np.argsort(flat, kind="stable")
    vector = SparseVector(math.prod(coo.shape), flat[order], coo.data[order])

    def restore(result: SparseVector) -> Any:
        entries = result.as_sparse()
        shape = coo.shape
        if result.length != vector.length:  # a part of the sum: a vector, or a row
            shape = (result.length,) if coo.ndim == 1 else (1, result.length)
        assert entries.indices is not None
        coords = np.unravel_index(entries.indices.astype(np.int64), shape)
        kind = sp.coo_array if isinstance(x, sp.sparray) else sp.coo_matrix
        return kind((entries.values.copy(), coords), shape=shape).asformat(x.format)

    return vector, restore


def _from_torch(x: Any) -> tuple[SparseVector, Restore]:
    import torch

    if x.layout == torch.sparse_coo:
        return _from_torch_coo(x)
    if x.layout != torch.strided:
        raise InputError(f"a tensor of layout {x.layout} cannot be summed; use strided or sparse_coo")
    array = tensor_to_numpy(x.detach().reshape(-1))

    def restore(result: SparseVector) -> Any:
        tensor = numpy_to_tensor(_own_array(result, array)).to(x.device)
        return tensor.reshape(x.shape) if tensor.numel() == x.numel() else tensor

    return SparseVector.from_dense(array), restore


def _from_torch_coo(x: Any) -> tuple[SparseVector, Restore]:
    """Any sparse and dense dimensions, row by row; like torch itself, duplicates are added up.

    A hybrid tensor such as an embedding's gradient has whole rows for entries: they become their elements.
    """
    coalesced = x.detach().coalesce()
    sparse_shape, row_shape = x.shape[: x.sparse_dim()], x.shape[x.sparse_dim() :]
    row = math.prod(row_shape)
    # numpy's ravel_multi_index needs at least one dimension, and a tensor may have no sparse one.
    extents = np.array(sparse_shape, np.int64)[:, None]
    strides = np.array([math.prod(sparse_shape[d:]) for d in range(1, len(extents) + 1)], np.int64)[:, None]
    rows = (coalesced.indices().cpu().numpy() * strides).sum(axis=0)
    flat = (rows[:, None] * row + np.arange(row)).reshape(-1)
    values = tensor_to_numpy(coalesced.values().reshape(-1))
    vector = SparseVector(x.numel(), flat, values)

    def restore(result: SparseVector) -> Any:
        if result.length != x.numel():  # a part of the sum
            entries = result.as_sparse()
            assert entries.indices is not None
            indices = entries.indices.astype(np.int64)
            return _coo(indices[None], entries.values.copy(), (result.length,), x.device)
        touched, filled = _rows(result, row)
        places = touched // strides % extents
        return _coo(places, filled.reshape(len(touched), *row_shape), x.shape, x.device)

    return vector, restore


def _rows(vector: SparseVector, row: int) -> tuple[Array, Array]:
    """The numbers of the rows (of ``row`` positions) that have an entry, and the values of these rows."""
    entries = vector.as_sparse()
    assert entries.indices is not None
    indices, values = entries.indices, entries.values
    if row == 1:
        return indices.astype(np.int64), values.copy()
    if row and len(indices) % row == 0:
        firsts, lasts = indices[::row].astype(np.int64), indices[row - 1 :: row]
        if not (firsts % row).any() and (lasts - firsts == row - 1).all():  # all rows are whole, as most are
            return firsts // row, values.copy()
    starts_row = np.diff(indices // row, prepend=-1) > 0
    touched = (indices // row)[starts_row].astype(np.int64)
    filled = np.zeros((len(touched), row), values.dtype)
    filled[np.cumsum(starts_row) - 1, indices % row] = values
    return touched, filled


def _coo(places: Array, values: Array, shape: Any, device: Any) -> Any:
    import torch

    kept = numpy_to_tensor(values.reshape(-1)).reshape(values.shape)
    return torch.sparse_coo_tensor(
        torch.from_numpy(places), kept, shape, device=device, is_coalesced=True, check_invariants=False
    )


def tensor_to_numpy(tensor: Any) -> Array:
    import torch

    tensor = tensor.cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # numpy lacks this type, so the same 16 bits travel as int16
        return np.asarray(tensor.view(torch.int16).numpy()).view(value_dtype("bfloat16"))
    return np.asarray(tensor.numpy())


def numpy_to_tensor(array: Array) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
