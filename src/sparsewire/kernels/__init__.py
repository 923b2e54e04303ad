"""The loops that decide the speed, in the best version that this machine runs.

    selection     the entries of largest magnitude: above a threshold, the k largest of a bucket, classes
    blocks        blocks of consecutive values: norms, which are not zero, adding and copying them
    entries       runs of entries: sums of runs, parts of runs, storing entries in dense arrays
    validation    indices that are out of order, checksums
    quantization  float32 values in 16, 8, 4 or 2 bits, and back
    index_codes   indices as few bits, and back
    rows          rows of a sparse matrix times vectors
    libsvm        LIBSVM's text format

Each is a module here, whose docstring lists its kernels; all kernels are functions of this package too.  A
kernel's function checks the arguments, makes room for the result, calls the active version and trims the
result.

Arrays are one-dimensional, contiguous and aligned; nothing is ever copied silently, so a strided array or
another dtype is a TypeError.  Indices are uint32 or uint64; values float32, float64, float16, bfloat16
(ml_dtypes'), int32 or int64.  Integers wrap around.  Half types are added in float32 and rounded once.

Versions are named "reference" (numpy), "scalar", "avx2" and "avx512"; all return the same bits, except for
the payload of a NaN.  SPARSEWIRE_ISA forces one at import.
"""

# ruff: noqa: F403  (each family says in its __all__ which kernels it has)
from sparsewire.kernels import blocks, entries, index_codes, libsvm, quantization, rows, selection, validation
from sparsewire.kernels.backend import active_isa as active_isa
from sparsewire.kernels.backend import available_isas as available_isas
from sparsewire.kernels.backend import use_isa as use_isa
from sparsewire.kernels.blocks import *
from sparsewire.kernels.checks import Entries as Entries
from sparsewire.kernels.checks import Indices as Indices
from sparsewire.kernels.entries import *
from sparsewire.kernels.index_codes import *
from sparsewire.kernels.libsvm import *
from sparsewire.kernels.quantization import *
from sparsewire.kernels.rows import *
from sparsewire.kernels.selection import *
from sparsewire.kernels.validation import *

_FAMILIES = (blocks, entries, index_codes, libsvm, quantization, rows, selection, validation)
_KERNELS = [name for family in _FAMILIES for name in family.__all__]
__all__ = sorted([*_KERNELS, "active_isa", "available_isas", "use_isa"])
