"""Every kernel in plain numpy: the specification, and what runs where no compiler was at hand.

The functions have the names and the arguments of the extension module ``_compiled``.  The arguments were
checked by the modules of the families, which also make room for the results.
"""

# ruff: noqa: F403  (every family says in its __all__ which kernels it has)
from sparsewire.kernels.reference.blocks import *
from sparsewire.kernels.reference.entries import *
from sparsewire.kernels.reference.index_codes import *
from sparsewire.kernels.reference.libsvm import *
from sparsewire.kernels.reference.quantization import *
from sparsewire.kernels.reference.rows import *
from sparsewire.kernels.reference.selection import *
from sparsewire.kernels.reference.validation import *
