"""What to send: compressors choose the entries of a gradient, and error feedback keeps the rest for later.

>>> import numpy as np, sparsewire.compress as swc
>>> compressor = swc.ErrorFeedback(swc.TopK(density=0.01))
>>> state = compressor.init(1000)
>>> sent, state = compressor.step(np.linspace(-1, 1, 1000, dtype="float32"), state)
>>> sent
SparseVector(length=1000, nnz=10, float32)
"""

from sparsewire.compress.block import BlockRandomK, BlockThreshold, BlockTopK
from sparsewire.compress.bucket import BucketTopK
from sparsewire.compress.compressor import Compressor
from sparsewire.compress.controlled_threshold import ControlledThreshold
from sparsewire.compress.feedback import ErrorFeedback, FeedbackState
from sparsewire.compress.gaussiank import GaussianK
from sparsewire.compress.quantized import Quantized
from sparsewire.compress.randomk import RandomK
from sparsewire.compress.schedule import Density, Warmup
from sparsewire.compress.source import Accumulated, Source, Values
from sparsewire.compress.state import State
from sparsewire.compress.threshold import Threshold
from sparsewire.compress.topk import TopK

__all__ = [
    "Accumulated",
    "BlockRandomK",
    "BlockThreshold",
    "BlockTopK",
    "BucketTopK",
    "Compressor",
    "ControlledThreshold",
    "Density",
    "ErrorFeedback",
    "FeedbackState",
    "GaussianK",
    "Quantized",
    "RandomK",
    "Source",
    "State",
    "Threshold",
    "TopK",
    "Values",
    "Warmup",
]
