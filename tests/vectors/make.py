"""Writes the test vectors: hand-chosen pieces as ``wire.encode`` writes them, beside what they mean.

    python tests/vectors/make.py

The same pieces always give the same files, and tests/unit/test_vectors.py checks that these are in place.
"""

import json
from pathlib import Path

import numpy as np

from sparsewire.coding import frame as wire
from sparsewire.coding.call import Abort, Call, Envelope
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import QSGD, HalfFloat, TwoLevels
from sparsewire.errors import PeerLostError
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype

FOLDER = Path(__file__).parent
CALL = Call("allreduce", "split_allgather", "sum", "float32", 1000, 0, "qsgd4")
ENVELOPE = Envelope(7, CALL.pack())
AS_THEY_ARE = 100.0  # a price that no coding of indices is worth

AWKWARD = [0.0, -0.0, 1.0, -1.5, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan")]
NUMBERS = [1.0, -0.25, 0.0, 3.0, 1e-3, -7.0, 2.0, 65504.0, 1e6, -1e-8]


def sparse(indices, length, start=0, stop=None, values=None, dtype="float32"):
    """Entries of a range; unless given, the values are 1, -2, 3, ..."""
    indices = list(indices)
    if values is None:
        values = [(-1) ** j * (j + 1) for j in range(len(indices))]
    vector = SparseVector(length, indices, np.array(values).astype(value_dtype(dtype)))
    return vector.range(start, length if stop is None else stop)


def dense(values, dtype="float32"):
    return SparseVector.from_dense(np.array(values).astype(value_dtype(dtype)))


def narrowed(precision, dtype="float32", values=NUMBERS):
    return rounded(sparse(range(0, 3 * len(values), 3), 40, values=values, dtype=dtype), precision, (7, 0, 0))


FIELDS = {"detail": "root"}  # fields of a call that the documents and the committed vectors name otherwise

# name -> the form that the encoder must choose, and the piece; for a list, one pair for each frame
VECTORS = {
    "coo": ("coo", sparse([1, 4, 7], 10, 0, 8)),
    "coo_u64": ("coo", sparse([0, 2**32 - 1, 2**32, 2**40 - 1], 2**40)),
    "coo_longest_u32": ("coo", sparse([0, 2**32 - 1], 2**32)),
    "no_entries": ("coo", sparse([], 1000, 10, 20)),
    "nothing_at_all": ("coo", SparseVector.empty(0)),
    **{f"dense_{dtype}": ("dense", dense([0, 1, -2, 100, -128], dtype)) for dtype in VALUE_DTYPES},
    "dense_piece": ("dense", dense(range(20)).range(7, 12)),
    "dense_awkward_values": ("dense", dense(AWKWARD)),
    "elias_fano": ("elias_fano", sparse([100, 103, 250, 251, 600, 898, 899], 1000, 100, 900)),
    "elias_fano_low_bits_across_words": ("elias_fano", sparse((j * j + j for j in range(60)), 3600)),
    "elias_fano_all_at_the_end": ("elias_fano", sparse(range(2**20 - 1271, 2**20, 70), 2**20)),
    "elias_fano_u64": ("elias_fano", sparse([*(j * (2**34 + 77) for j in range(60)), 2**40 - 1], 2**40)),
    "bitmap": ("bitmap", sparse((j for j in range(64, 203) if j % 3), 210, 64, 203)),
    "bitmap_whole_words": ("bitmap", sparse((j for j in range(128) if j % 5), 128)),
    "tiles": ("tiles", sparse([*range(300, 364), *range(9000, 9064)], 10_000, 300, 9991)),
    "tiles_two_directory_words": ("tiles", sparse([*range(64, 128), *range(4096, 4160), 6399], 6400)),
    "float16_of_float32": ("bitmap", narrowed(HalfFloat("float16"))),
    "float16_of_float64": ("bitmap", narrowed(HalfFloat("float16"), "float64")),
    "float16_awkward_values": ("bitmap", narrowed(HalfFloat("float16"), values=AWKWARD)),
    "bfloat16_of_float32": ("bitmap", narrowed(HalfFloat("bfloat16"))),
    "bfloat16_awkward_values": ("bitmap", narrowed(HalfFloat("bfloat16"), values=AWKWARD)),
    **{
        f"qsgd{bits}_of_{dtype}": ("bitmap", narrowed(QSGD(bits, bucket=4), dtype))
        for bits in (2, 4, 8)
        for dtype in ("float32", "float64")
    },
    "qsgd4_awkward_values": ("bitmap", narrowed(QSGD(4, bucket=5), values=AWKWARD)),
    "qsgd8_of_zeros": ("bitmap", narrowed(QSGD(8), values=[0.0] * 5)),
    **{
        f"two_levels_of_{dtype}": ("bitmap", narrowed(TwoLevels(bucket=4), dtype))
        for dtype in ("float32", "float64")
    },
    "two_levels_awkward_values": ("bitmap", narrowed(TwoLevels(bucket=6), values=AWKWARD)),
    "two_levels_dense": ("dense", rounded(dense(NUMBERS), QSGD(2), None)),
    "qsgd2_dense": ("dense", rounded(dense(NUMBERS), QSGD(2, bucket=3, norm="2"), (7, 0, 0))),
    "list_of_one": [("coo", sparse([1], 4))],
    "list_of_many": [
        ("dense", dense([1, 2, 3], "int32")),
        ("bitmap", narrowed(QSGD(4, bucket=4))),
        ("elias_fano", sparse(range(0, 7000, 100), 2**33, dtype="bfloat16")),
        ("coo", SparseVector.empty(5, "int64")),
    ],
    "abort": ("abort", Abort(PeerLostError("rank 3 is gone: Größe"), (1, 5))),
}


def vector(sent):
    """A test vector, as JSON has it."""
    if isinstance(sent, list):
        counted = list(zip(reversed(range(len(sent))), sent, strict=True))
        payload = [piece for _, piece in sent]
    else:
        counted, payload = [(None, sent)], sent[1]
    price = AS_THEY_ARE if all(form == "coo" for _, (form, _) in counted) else 0.0
    message = b"".join(bytes(memoryview(buffer)) for buffer in wire.encode(payload, ENVELOPE, price))
    frames = [meaning(piece, ENVELOPE, following) | {"format": form} for following, (form, piece) in counted]
    return {"message": message.hex(), "frames": frames}


def meaning(piece, envelope, following=None):
    """What a reader must find in the frame of a piece, the form of its indices apart."""
    frame = {
        "collective": envelope.collective,
        "call": {
            FIELDS.get(field, field): value for field, value in vars(Call.unpack(envelope.call)).items()
        },
        "following": following,
    }
    if isinstance(piece, Abort):
        size = len(piece.to_json())
        frame |= {"dtype": "none", "precision": "exact", "length": size, "start": 0, "stop": size}
        return frame | {"error": json.loads(piece.to_json())}
    indices = range(piece.start, piece.stop) if piece.indices is None else piece.indices.tolist()
    return frame | {
        "dtype": piece.dtype.name,
        "precision": "exact" if piece.packed is None else piece.packed.precision.name,
        "length": piece.length,
        "start": piece.start,
        "stop": piece.stop,
        "indices": list(indices),
        "values": as_json(piece.values.tolist()),
    }


def as_json(numbers):
    """Floats as strings that keep every bit."""
    return [number if isinstance(number, int) else float(number).hex() for number in numbers]


def main():
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, sent in VECTORS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(vector(sent), indent=1) + "\n")


if __name__ == "__main__":
    main()
