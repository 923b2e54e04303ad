"""Error of two bits with the nearest level, and the share of values that become zero, for the largest 1% of a vector.

    python benchmarks/two_bits.py > benchmarks/two_bits.txt

`max` are the levels -s, 0 and s of QSGD with the largest magnitude as s.  `best` has the s of least squared error in
each bucket, the mean of its t largest magnitudes for the best t.  `two` is the code that feedback uses: a sign, and one
of two magnitudes of the bucket.  Errors are relative to the length of the vector.
"""

import numpy as np

from sparsewire.coding.values import QSGD, TwoLevels

LENGTH, SHARE, BUCKET = 1 << 20, 0.01, 1024
DRAWS = {
    "Student's t, 1.5": lambda rng: rng.standard_t(1.5, LENGTH),
    "Student's t, 2": lambda rng: rng.standard_t(2, LENGTH),
    "Student's t, 3": lambda rng: rng.standard_t(3, LENGTH),
    "Laplace": lambda rng: rng.laplace(size=LENGTH),
    "normal": lambda rng: rng.normal(size=LENGTH),
}


def largest_magnitude(values):
    precision = QSGD(2, BUCKET)
    return precision.unpack(precision.pack(values, 0, None), len(values))


def least_squares(values):
    rounded = np.zeros_like(values)
    for first in range(0, len(values), BUCKET):
        bucket = values[first : first + BUCKET]
        sizes = np.sort(np.abs(bucket))[::-1]
        means = np.cumsum(sizes, dtype=np.float64) / np.arange(1, len(bucket) + 1)
        count = np.argmax(means**2 * np.arange(1, len(bucket) + 1))
        is_kept = np.abs(bucket) >= sizes[count]
        rounded[first : first + BUCKET] = np.where(is_kept, np.sign(bucket) * means[count], 0)
    return rounded


def two_levels(values):
    precision = TwoLevels(BUCKET)
    return precision.unpack(precision.pack(values, 0, None), len(values))


print(f"{'values':<18}" + "".join(f"{name + ' error':>12} {'zeros':>6}" for name in ("max", "best", "two")))
for name, draw in DRAWS.items():
    values = draw(np.random.default_rng(0)).astype(np.float32)
    count = int(SHARE * LENGTH)
    values = values[np.sort(np.argpartition(np.abs(values), -count)[-count:])]
    cells = []
    for rounding in (largest_magnitude, least_squares, two_levels):
        rounded = rounding(values)
        error = np.linalg.norm(values - rounded) / np.linalg.norm(values)
        cells.append(f"{error:>12.2f} {np.mean(rounded == 0):>6.0%}")
    print(f"{name:<18}" + "".join(cells))
