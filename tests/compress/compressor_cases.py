"""Every compressor in a small setting, inputs at the edges, and what numpy says about magnitudes."""

import numpy as np

import sparsewire.compress as swc
from sparsewire.vector import VALUE_DTYPES, value_dtype

COMPRESSORS = {
    "topk": swc.TopK(density=0.1),
    "topk-of-all": swc.TopK(density=1),
    "topk-warmup": swc.TopK(swc.Warmup(0.05, steps=3)),
    "bucket-topk": swc.BucketTopK(k=2, bucket=16),
    "threshold": swc.Threshold(1.5),
    "controlled-threshold": swc.ControlledThreshold(density=0.1),
    "gaussian-k": swc.GaussianK(density=0.1),
    "random-k": swc.RandomK(density=0.1, seed=7),
    "block-topk": swc.BlockTopK(density=0.3, block=8),
    "block-random-k": swc.BlockRandomK(density=0.3, block=8, seed=7),
    "block-threshold": swc.BlockThreshold(4, block=8),
}
DTYPES = VALUE_DTYPES
LENGTHS = (0, 1, 2, 3, 16, 17, 100, 1025)
KINDS = ("zero", "equal", "tied", "normal", "heavy", "one", "not-finite")


def values(kind, length, dtype, seed):
    """An input of that kind; integers take what they can hold."""
    rng = np.random.default_rng(seed)
    x = {
        "zero": lambda: np.zeros(length),
        "equal": lambda: np.full(length, -2.0),
        "tied": lambda: rng.integers(-2, 3, length).astype(float),
        "normal": lambda: 3 * rng.standard_normal(length),
        "heavy": lambda: np.clip(rng.standard_cauchy(length), -3e4, 3e4),
        "one": lambda: np.where(np.arange(length) == length // 2, 5.0, 0.0),
        "not-finite": lambda: rng.choice([np.nan, np.inf, -np.inf, 1.0, 0.0, -2.0], length),
    }[kind]()
    target = value_dtype(dtype)
    if target.kind == "i":
        x = np.nan_to_num(x, nan=100, posinf=50, neginf=-50)
    x = x.astype(target)
    x.flags.writeable = False
    return x


def largest(x, k):
    """Positions of the k largest magnitudes, NaN first, the lowest index among equals, and no zeros."""
    magnitude = np.abs(x.astype(np.float64))
    is_nan = np.isnan(magnitude)
    order = np.lexsort((np.arange(len(x)), -np.where(is_nan, 0, magnitude), ~is_nan))[:k]
    return np.sort(order[x[order] != 0])


def added(a, b):
    """The sum as the kernels round it: half types once, from float32."""
    wide = np.float32 if a.itemsize == 2 else a.dtype
    with np.errstate(over="ignore", invalid="ignore"):
        return (a.astype(wide) + b.astype(wide)).astype(a.dtype)


def bits(x):
    """Values as integers, so that -0.0, NaN and the last bit count."""
    return np.where(x != x, -1, x.view(f"i{x.itemsize}"))
