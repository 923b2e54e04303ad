"""Lines of LIBSVM's text format as the arrays of a sparse matrix.

libsvm_room   memory for the rows of a text
parse_libsvm  the rows of a text
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks
from sparsewire.kernels.reference.libsvm import LARGEST_INDEX as LARGEST_INDEX
from sparsewire.kernels.reference.libsvm import Expected as Expected
from sparsewire.kernels.reference.libsvm import Parsed as Parsed
from sparsewire.kernels.reference.libsvm import Room as Room
from sparsewire.kernels.reference.libsvm import Wanted as Wanted

__all__ = [
    "libsvm_room",
    "parse_libsvm",
]

_ALL_LINES = Wanted()


def libsvm_room(nbytes: int, index_dtype: npt.DTypeLike, dtype: npt.DTypeLike) -> Room:
    """Room for the rows of any text of so many bytes; it takes no memory until it is written to."""
    rows, entries = checks.not_negative(nbytes, "nbytes") // 2, nbytes // 4
    # Not from `memory`, which would keep the memory: it is needed once for each file, not for each
    # collective.
    return Room(
        np.empty(rows, np.float64),
        np.empty(rows, np.int64),
        np.empty(entries, index_dtype),
        np.empty(entries, dtype),
    )


def parse_libsvm(text: npt.NDArray[np.uint8], room: Room, wanted: Wanted = _ALL_LINES) -> Parsed:
    """The rows of a text of whole lines, ``label [qid:N] index:value ... [# comment]``, stored in the room.

    Every line ends with a newline; those without a word are no rows.  Numbers are decimal and finite.  A
    value is the nearest float64; if the room has float32, that is rounded once more.  Explicit zeros stay.
    Indices increase strictly within a row, and are stored as they are: from 0 or from 1 on.  Parsing
    ends at the first malformed line, and the result says what is wrong with it.

    >>> text = np.frombuffer(b"+1 3:0.5 7:1\\n# a comment\\n-1 qid:4 2:1e3\\n", np.uint8)
    >>> room = libsvm_room(len(text), np.int32, np.float32)
    >>> parse_libsvm(text, room)[:6]
    (2, 3, 3, 2, 7, True)
    >>> room.labels[:2], room.counts[:2], room.indices[:3]
    (array([ 1., -1.]), array([2, 1]), array([3, 7, 2], dtype=int32))
    """
    checks.exact_dtype(text, np.uint8, "text")
    _check_libsvm_room(room, len(text))
    if len(text) > 0 and text[-1] != ord("\n"):
        raise ValueError("the last line of the text must end with a newline")
    if wanted.first < 0 or wanted.every < 1 or not 0 <= wanted.lowest <= wanted.highest <= LARGEST_INDEX:
        raise ValueError(f"there are no such lines or indices: {wanted}")
    return Parsed(*backend.active.parse_libsvm(text, *wanted, *room))


def _check_libsvm_room(room: Room, nbytes: int) -> None:
    for name, array, dtypes, needed in (
        ("labels", room.labels, ("float64",), nbytes // 2),
        ("counts", room.counts, ("int64",), nbytes // 2),
        ("indices", room.indices, ("int32", "int64"), nbytes // 4),
        ("values", room.values, ("float32", "float64"), nbytes // 4),
    ):
        checks.array(array, name)
        checks.writeable(array, name)
        if array.dtype.name not in dtypes or not array.dtype.isnative:
            raise TypeError(f"{name} must be {' or '.join(dtypes)}, not {array.dtype}")
        if len(array) < needed:
            raise ValueError(f"{nbytes} bytes of text may need room for {needed} {name}, got {len(array)}")
