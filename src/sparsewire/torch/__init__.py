"""Sparsewire for PyTorch: one line after ``DDP(model)``.

import sparsewire.torch as swt
handle = swt.compress(ddp, density=0.01)
"""

from sparsewire.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError.of("torch", "torch") from error

from sparsewire.torch.collectives import all_reduce
from sparsewire.torch.compress import METHODS, compress
from sparsewire.torch.handle import Compression
from sparsewire.torch.transport import communicator

__all__ = ["METHODS", "Compression", "all_reduce", "communicator", "compress"]
