"""Any bytes decode to a payload or raise WireError, and nothing else.

    python fuzz/fuzz_wire_decode.py [inputs [seed]]

Random bytes alone never pass the magic number, so most inputs are valid messages with damage: flipped bytes,
cut ends, spliced halves, and header fields that were changed under a CRC made right again.  Whatever decodes
must encode to the same bytes again, padding apart.  Every version of the kernels has its turn.  Prints its
seed; the same seed gives the same inputs.
"""

from __future__ import annotations

import itertools
import random
import struct
import sys
import time
import zlib

import numpy as np

from sparsewire import kernels, wire
from sparsewire.errors import SparsewireError, WireError
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype
from sparsewire.wire import Abort, Call, Envelope

INTERESTING = [0, 1, 2, 7, 8, 255, 2**31, 2**32 - 1, 2**32, 2**55, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
BATCH = 20  # damaged copies of one message
PROGRESS_S = 5.0


def message(chance: random.Random) -> bytes:
    """A valid message."""
    envelope = Envelope(chance.getrandbits(64), Call("allreduce", "auto", "sum", "float32", 100).pack())
    if chance.random() < 0.15:
        payload: wire.Payload = Abort(SparsewireError("x" * chance.randrange(50)), (1, 2))
    else:
        pieces = [_piece(chance) for _ in range(chance.choice([1, 1, 2, 3]))]
        payload = pieces if len(pieces) > 1 or chance.random() < 0.3 else pieces[0]
    return b"".join(bytes(buffer) for buffer in wire.encode(payload, envelope))


def _piece(chance: random.Random) -> SparseVector:
    length = chance.choice([0, 1, 9, 100, 2**33])
    nnz = chance.randrange(min(length, 20) + 1)
    dtype = value_dtype(chance.choice(VALUE_DTYPES))
    vector = SparseVector(length, range(nnz), np.arange(nnz).astype(dtype))
    return vector.as_dense() if length <= 100 and chance.random() < 0.4 else vector


def damaged(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        kind = chance.randrange(6)
        at = chance.randrange(len(changed)) if changed else 0
        if kind == 0:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed += chance.randbytes(chance.randrange(40))
        elif kind == 3:
            changed = changed[:at] + bytearray(message(chance))[chance.randrange(100) :]
        elif len(changed) >= wire.HEADER_BYTES:
            _change_field(chance, changed)
    return bytes(changed)


def _change_field(chance: random.Random, frame: bytearray) -> None:
    """One of the header's numbers, with a CRC that is right again: a peer that is broken but sincere."""
    offset, form = chance.choice(
        [(5, "B"), (6, "B"), (7, "B"), (96, "I"), *((at, "Q") for at in range(56, 96, 8))]
    )
    limit = 256 ** struct.calcsize(form)
    struct.pack_into(f"<{form}", frame, offset, chance.choice([*INTERESTING, chance.getrandbits(64)]) % limit)
    head = wire.HEADER_BYTES - 4
    struct.pack_into("<I", frame, head, zlib.crc32(frame[:head]))


def check(data: bytes) -> bool:
    """Did it decode?  Raises if it does anything but decode or raise WireError."""
    own = np.frombuffer(data, np.uint8).copy()  # ends where the data end: a sanitizer sees any read behind it
    try:
        envelope, payload = wire.decode(own)
    except WireError:
        return False
    again = b"".join(bytes(buffer) for buffer in wire.encode(payload, envelope))
    assert wire.size(payload) == len(again)
    if not isinstance(payload, Abort):
        assert len(again) == len(data)
    return True


def main(inputs: int, seed: int) -> None:
    isas = kernels.available_isas()
    print(f"seed {seed}, {inputs:,} inputs, kernels {', '.join(isas)}", flush=True)
    chance = random.Random(seed)
    tried = decoded = 0
    began = said = time.monotonic()
    for isa in itertools.cycle(isas):
        with kernels.use_isa(isa):
            decoded += batch(chance)
        tried += BATCH
        now = time.monotonic()
        if tried >= inputs or now - said > PROGRESS_S:
            print(f"{tried:,} inputs, {tried / (now - began):,.0f} a second: {decoded:,} decoded", flush=True)
            said = now
        if tried >= inputs:
            break
    print("the rest raised WireError, nothing else happened")


def batch(chance: random.Random) -> int:
    """How many of a valid message's damaged copies decode."""
    data = message(chance)
    assert check(data), data.hex()
    decoded = 0
    for attempt in (
        chance.randbytes(chance.randrange(300)),
        *(damaged(chance, data) for _ in range(BATCH - 1)),
    ):
        try:
            decoded += check(attempt)
        except Exception:
            print(f"kernels {kernels.active_isa()}, input that broke it (hex): {attempt.hex()}")
            raise
    return decoded


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
