"""Any bytes decode to a payload or raise WireError, and nothing else; so does what is done with the payload.

    python fuzz/fuzz_wire_decode.py [inputs [seed]]

Random bytes alone never pass the magic number, so most inputs are valid messages with damage: flipped bytes,
cut ends, spliced halves, changed header fields.  In most of them all checksums are computed anew.  Then only
the code that reads the damaged field or word can notice, as if a peer with a defect had sent it.

What decodes is valid, stays the same if it is sent again, and is the same for all versions of the kernels,
which take turns.  The program prints its seed; the same seed gives the same inputs.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import sys
import time
import warnings
import zlib
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Abort, Call, Envelope
from sparsewire.coding.frame import HEADER_BYTES, Payload
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import PRECISIONS, QSGD, TwoLevels
from sparsewire.errors import SparsewireError, WireError
from sparsewire.expected import Expected
from sparsewire.reduction import MAX, SUM, concat
from sparsewire.testing import same_bits
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype

INTERESTING = [0, 1, 2, 7, 8, 255, 2**31, 2**32 - 1, 2**32, 2**55, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
MOST_POSITIONS = 1 << 16  # of a range that is made dense
BATCH = 20  # damaged copies of one message
PROGRESS_S = 5.0

# -- valid messages ------------------------------------------------------------------------------


def message(chance: random.Random) -> bytes:
    envelope = Envelope(chance.getrandbits(64), Call("allreduce", "auto", "sum", "float32", 100).pack())
    if chance.random() < 0.1:
        payload: Payload = Abort(SparsewireError("x" * chance.randrange(50)), (1, 2))
    else:
        pieces = [_piece(chance) for _ in range(chance.choice([1, 1, 2, 3]))]
        payload = pieces if len(pieces) > 1 or chance.random() < 0.3 else pieces[0]
    return as_bytes(payload, envelope, price=chance.choice([0.0, 0.0, 100.0]))


def as_bytes(payload: Payload, envelope: Envelope, price: float = 0.0) -> bytes:
    return b"".join(bytes(buffer) for buffer in wire.encode(payload, envelope, price))


def _piece(chance: random.Random) -> SparseVector:
    """Of any form of indices, dtype and precision."""
    length = chance.choice([0, 1, 9, 64, 100, 1000, 10_000, 2**33])
    support = sorted(_support(chance, length))
    dtype = value_dtype(chance.choice(VALUE_DTYPES))
    vector = SparseVector(length, support, np.arange(len(support)).astype(dtype))
    if support and chance.random() < 0.5:
        vector = vector.range(support[0], support[-1] + 1)
    if length <= 100 and chance.random() < 0.4:
        vector = vector.as_dense()
    if dtype.name in ("float32", "float64") and chance.random() < 0.5:
        precision = chance.choice([*PRECISIONS.values(), QSGD(4, bucket=3), TwoLevels(), TwoLevels(3)])
        vector = rounded(vector, precision, (0, 0, 0))
    return vector


def _support(chance: random.Random, length: int) -> set[int]:
    """Scattered entries, or runs of them, which are smallest as Elias-Fano and as tiles, or a bitmap."""
    if chance.random() < 0.5:
        return set(chance.sample(range(length), chance.randrange(min(length, 70) + 1)))
    begins = (chance.randrange(length + 1) for _ in range(chance.randrange(4)))
    return {index for begin in begins for index in range(begin, min(length, begin + 64))}


# -- damage --------------------------------------------------------------------------------------


def damaged(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    damages, share_mended = chance.choice([(ANYWHERE, 0.5), (IN_THE_PAYLOAD, 1.0)])
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        chance.choice(damages)(chance, changed)
    if chance.random() < share_mended:
        mend_checksums(changed)
    return bytes(changed)


def _flip_bit(chance: random.Random, data: bytearray, begin: int = 0) -> None:
    if len(data) > begin:
        data[chance.randrange(begin, len(data))] ^= 1 << chance.randrange(8)


def _flip_bit_of_the_payload(chance: random.Random, data: bytearray) -> None:
    _flip_bit(chance, data, HEADER_BYTES)


def _replace_word(chance: random.Random, data: bytearray) -> None:
    """Of the payload, most of which is words."""
    if len(data) >= HEADER_BYTES + 8:
        at = chance.randrange(HEADER_BYTES, len(data) - 7, 8)
        struct.pack_into("<Q", data, at, _number(chance))


def _cut(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _append(chance: random.Random, data: bytearray) -> None:
    data += chance.randbytes(chance.randrange(40))


def _splice(chance: random.Random, data: bytearray) -> None:
    _cut(chance, data)
    data += message(chance)[chance.randrange(HEADER_BYTES) :]


def _change_field(chance: random.Random, data: bytearray) -> None:
    """One of the header's numbers, to something interesting or to a neighbour."""
    if len(data) < HEADER_BYTES:
        return
    offset, form = chance.choice(FIELDS)
    (number,) = struct.unpack_from(form, data, offset)
    number = chance.choice([_number(chance), number + 1, number - 1])
    struct.pack_into(form, data, offset, number % 256 ** struct.calcsize(form))
    _mend_crc(data, 0)


def _number(chance: random.Random) -> int:
    return chance.choice([*INTERESTING, chance.getrandbits(64)])


ANYWHERE = [_flip_bit, _cut, _append, _splice, _change_field]
IN_THE_PAYLOAD = [_flip_bit_of_the_payload, _replace_word]
FIELDS = [(5, "<B"), (6, "<B"), (7, "<B"), (96, "<I"), (100, "<I"), (104, "<I")]
FIELDS += [(offset, "<Q") for offset in range(56, 96, 8)]


def mend_checksums(data: bytearray) -> None:
    """Of every frame, as far as frames can be told apart."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        _mend_crc(data, at)
        try:
            frame = wire._Header.parse(data[at : at + HEADER_BYTES])
        except WireError:
            return
        payload = np.frombuffer(bytes(data[at + HEADER_BYTES :]), np.uint8)
        values_at = frame.index_bytes + -frame.index_bytes % 8
        checksum = kernels.checksum(payload[: frame.index_bytes])
        checksum = kernels.checksum(payload[values_at : values_at + frame.value_bytes], checksum)
        struct.pack_into("<Q", data, at + 88, checksum)
        _mend_crc(data, at)
        at += HEADER_BYTES + frame.payload_bytes


def _mend_crc(data: bytearray, at: int) -> None:
    end = at + HEADER_BYTES - 4
    struct.pack_into("<I", data, end, zlib.crc32(data[at:end]))


# -- what must hold ------------------------------------------------------------------------------


def check(data: bytes, other_isa: str) -> bool:
    """Did it decode?  Raises if it does anything but decode or raise WireError."""
    own = np.frombuffer(data, np.uint8).copy()  # ends where the data end: a sanitizer sees any read behind it
    try:
        envelope, payload, _ = wire.decode(own)
    except WireError:
        return False
    for piece in payload if isinstance(payload, list) else [payload]:
        assert isinstance(piece, Abort) or is_valid(piece)
    for sent in (payload, coded_anew(payload)):
        again = as_bytes(sent, envelope)
        assert len(again) == wire.size(sent)
        assert same(wire.decode(again).payload, payload)
    with kernels.use_isa(other_isa):
        assert same(wire.decode(own).payload, payload)
    use(payload if isinstance(payload, list) else [payload])
    return True


def use(pieces: list[Any]) -> None:
    """What a script does with pieces: whatever they are, they are summed up and joined, or refused."""
    vectors = [piece for piece in pieces if isinstance(piece, SparseVector) and piece.span <= MOST_POSITIONS]
    if not vectors:
        return
    with contextlib.suppress(WireError):
        Expected(vectors[0].length, vectors[0].start, None, vectors[0].dtype).check(3, vectors[-1])
    for act in (SUM.merge, SUM.dense, MAX.merge, concat):
        with contextlib.suppress(WireError):
            total = act([*vectors, vectors[0]] if act is not concat else vectors)
            assert is_valid(total)
            dense = total.to_dense()
            assert len(dense) == total.span
            if total.indices is not None:
                kernels.spread(dense, total.indices, total.values, offset=total.start)
            assert all(map(is_valid, total.split_evenly(3)))
            assert is_valid(total.own().smaller())


def coded_anew(payload: Payload) -> Payload:
    """The payload without the bytes that it came as, which would be forwarded."""
    if isinstance(payload, list):
        return [piece.decoded() for piece in payload]
    return payload if isinstance(payload, Abort) else payload.decoded()


def same(a: Payload, b: Payload) -> bool:
    if isinstance(a, Abort) or isinstance(b, Abort):
        return isinstance(a, Abort) and isinstance(b, Abort) and a.to_json() == b.to_json()
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return same_bits(_nans_alike(a), _nans_alike(b))


def _nans_alike(piece: SparseVector) -> SparseVector:
    """Of a NaN that was computed, neither sign nor payload is promised."""
    if piece.packed is None:
        return piece
    values = piece.values.copy()
    values[np.isnan(values)] = np.nan
    return piece.with_values(values, piece.packed)


def is_valid(piece: SparseVector) -> bool:
    """By comparisons that share nothing with the decoders."""
    if piece.indices is None:
        return len(piece.values) == piece.span
    numbers = piece.indices.tolist()
    increase = all(a < b for a, b in itertools.pairwise(numbers))
    inside = not numbers or (piece.start <= numbers[0] and numbers[-1] < piece.stop)
    return increase and inside and len(piece.values) == len(numbers)


# -- the run -------------------------------------------------------------------------------------


def main(inputs: int, seed: int) -> None:
    isas = kernels.available_isas()
    warnings.simplefilter("error")
    print(f"seed {seed}, {inputs:,} inputs, kernels {', '.join(isas)}", flush=True)
    chance = random.Random(seed)
    tried = decoded = 0
    began = said = time.monotonic()
    for isa, other_isa in zip(itertools.cycle(isas), itertools.cycle(isas[1:] + isas[:1]), strict=True):
        with kernels.use_isa(isa):
            decoded += batch(chance, other_isa)
        tried += BATCH
        now = time.monotonic()
        if tried >= inputs or now - said > PROGRESS_S:
            print(f"{tried:,} inputs, {tried / (now - began):,.0f} a second: {decoded:,} decoded", flush=True)
            said = now
        if tried >= inputs:
            break
    print("the rest raised WireError, nothing else happened")


def batch(chance: random.Random, other_isa: str) -> int:
    """How many of a valid message's damaged copies decode."""
    data = message(chance)
    assert check(data, other_isa), data.hex()
    attempts = [damaged(chance, data) for _ in range(BATCH - 1)]
    decoded = 0
    for attempt in (chance.randbytes(chance.randrange(300)), *attempts):
        try:
            decoded += check(attempt, other_isa)
        except Exception:
            print(f"kernels {kernels.active_isa()}, input that broke it (hex): {attempt.hex()}")
            raise
    return decoded


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
