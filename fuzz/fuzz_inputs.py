"""What comes from outside beside frames: a damaged input is refused by the error that names it, or is read.

    python fuzz/fuzz_inputs.py [inputs [seed [target]]]

    abort, call   what a rank tells of a failure, and which call a message belongs to
    note          facts that ranks tell each other as JSON
    handshake     both sides of it, with a peer that does not know the secret
    libsvm        rows as text
    model         files of fitted models
    state         checkpoints of a training step

Inputs are those of ``fuzz/corpus/<target>`` with damage.  The program prints its seed; the same seed gives
the same inputs.  Whatever raises another error, or is read as something impossible, ends the run.
"""

from __future__ import annotations

import ast
import functools
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire.algorithms import Regions
from sparsewire.coding.call import Abort, Call
from sparsewire.compress.feedback import FeedbackState
from sparsewire.compress.state import StepState
from sparsewire.drivers import note
from sparsewire.drivers.tcp import handshake
from sparsewire.errors import InputError, SparsewireError, WireError
from sparsewire.linear import load_libsvm
from sparsewire.linear.model_file import load_model
from sparsewire.sync import SyncState
from sparsewire.vector import SparseVector

CORPUS = Path(__file__).parent / "corpus"
BATCH, SLOW_BATCH = 40, 2
SLOW = ("libsvm", "model")  # these read files, which takes a hundred times longer
PROGRESS_S = 5.0
TOKENS = [
    b"0",
    b"-1",
    b"1e999",
    b"nan",
    b"9" * 30,
    b"null",
    b"[" * 2000,
    b'"',
    b":",
    b"\n",
    b"\0",
    b"\xff",
    b" ",
]

# -- targets: each returns whether the input was read --------------------------------------------


def abort(data: bytes) -> bool:
    try:
        read = Abort.from_json(data)
    except WireError:
        return False
    assert all(rank >= 0 for rank in read.waiting)
    again = Abort.from_json(read.to_json())
    assert (type(again.error), again.waiting) == (type(read.error), read.waiting)
    return True


def call(data: bytes) -> bool:
    packed = data[:40].ljust(40, b"\0")
    assert Call.described(packed).isprintable()
    try:
        assert Call.unpack(packed).pack() == packed
    except WireError:
        return False
    return True


def note_of_a_rank(data: bytes) -> bool:
    numbers = np.frombuffer(data[: len(data) // 8 * 8], np.int64)
    try:
        note.from_vector(3, SparseVector.from_dense(numbers))
    except WireError:
        return False
    return True


def handshake_without_the_secret(data: bytes) -> bool:
    secret = b"0123456789abcdef"
    for dialogue in (handshake.accept(secret, 0, 4), handshake.dial(secret, 1, 0, 4)):
        rest, answer = data, None
        try:
            while True:
                asked = dialogue.send(answer)
                answer = None
                if isinstance(asked, int):
                    answer, rest = rest[:asked], rest[asked:]
                    if len(answer) < asked:
                        break
                elif isinstance(asked, handshake.StartTLS):
                    answer = b""
        except SparsewireError:
            continue
        except StopIteration:
            raise AssertionError("a peer without the secret was let in") from None
    return False


def libsvm(data: bytes) -> bool:
    scratch().write_bytes(data)
    try:
        rows, labels = load_libsvm(scratch())
    except InputError:
        return False
    assert rows.shape[0] == len(labels)
    assert np.isfinite(rows.data).all()
    assert len(rows.indices) == 0 or 0 <= rows.indices.min() <= rows.indices.max() < rows.shape[1]
    return True


def model(data: bytes) -> bool:
    scratch().write_bytes(data)
    try:
        loaded = load_model(scratch())
    except InputError:
        return False
    assert loaded.coef_.shape[-1] == loaded.n_features_in_
    return True


def state(data: bytes) -> bool:
    """A checkpoint as the text of a dict, in which lists stand for arrays of float32."""
    try:
        saved = ast.literal_eval(data.decode())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    if isinstance(saved, dict) and isinstance(inner := saved.get("compressor"), dict):
        for name, content in inner.items():
            if isinstance(content, list) and all(isinstance(number, float) for number in content):
                inner[name] = np.array(content, np.float32)
    kept = SyncState(0, FeedbackState(np.zeros(4, np.float32), None, StepState(0)))
    try:
        read = kept.load_state_dict(saved)
    except InputError:
        return False
    assert read.compressor.residual.shape == (4,)
    assert read.regions is None or isinstance(read.regions, Regions)
    return True


@functools.cache
def scratch() -> Path:
    """A file for an input, in a folder that is removed in the end."""
    folder = tempfile.TemporaryDirectory()
    _folders.append(folder)
    return Path(folder.name) / "input"


_folders: list[Any] = []

TARGETS: dict[str, Callable[[bytes], bool]] = {
    "abort": abort,
    "call": call,
    "note": note_of_a_rank,
    "handshake": handshake_without_the_secret,
    "libsvm": libsvm,
    "model": model,
    "state": state,
}

# -- damage --------------------------------------------------------------------------------------


def corpus(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def damaged(chance: random.Random, inputs: list[bytes]) -> bytes:
    data = bytearray(chance.choice(inputs))
    for _ in range(chance.choice([1, 1, 2, 4, 8])):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at : at + chance.choice([1, 1, 4, 30])]
        elif kind == 2:
            data[at:at] = chance.choice(TOKENS)
        elif kind == 3:
            other = chance.choice(inputs)
            data[at:] = other[chance.randrange(len(other) + 1) :]
        elif kind == 4:
            data[at : at + 1] = chance.randbytes(1)
        else:
            data[at : at + 8] = chance.choice([0, 1, 2**31, 2**63, 2**64 - 1]).to_bytes(8, "little")
    return bytes(data)


# -- the run -------------------------------------------------------------------------------------


def attempt(target: str, data: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fields that are not used, and of numbers that overflow
            return TARGETS[target](data)
    except Exception:
        print(f"target {target}, input that broke it (hex): {data.hex()}")
        raise


def main(inputs: int, seed: int, chosen: str = "") -> None:
    targets = [chosen] if chosen else [*TARGETS]
    print(f"seed {seed}, {inputs:,} inputs, targets {', '.join(targets)}", flush=True)
    chance, seeds = random.Random(seed), {target: corpus(target) for target in targets}
    tried = read = 0
    began = said = time.monotonic()
    while tried < inputs:
        for target in targets:
            batch = SLOW_BATCH if target in SLOW else BATCH
            read += sum(attempt(target, damaged(chance, seeds[target])) for _ in range(batch))
            tried += batch
        now = time.monotonic()
        if tried >= inputs or now - said > PROGRESS_S:
            print(f"{tried:,} inputs, {tried / (now - began):,.0f} a second: {read:,} were read", flush=True)
            said = now
    print("the rest was refused by the error that names it, nothing else happened")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
        sys.argv[3] if len(sys.argv) > 3 else "",
    )
