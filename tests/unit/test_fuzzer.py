"""The fuzzer of ``make test-full`` works: it passes here, and finds the defects that it is made for."""

import itertools

import fuzz_inputs
import fuzz_wire_decode as fuzzer
import numpy as np
import pytest

from sparsewire.coding import frame as wire
from sparsewire.coding.call import Envelope
from sparsewire.vector import SparseVector


def test_a_few_inputs_pass(capsys):
    fuzzer.main(1000, seed=1)
    assert "1,000 inputs" in capsys.readouterr().out


def test_a_few_damaged_inputs_of_every_kind_pass(capsys):
    fuzz_inputs.main(1000, seed=1)
    assert "inputs" in capsys.readouterr().out


@pytest.mark.parametrize("target", fuzz_inputs.TARGETS)
def test_the_corpus_is_read_as_before(target):
    """The inputs of the corpus are valid, but for those that a peer without the secret sends."""
    read = [fuzz_inputs.attempt(target, data) for data in fuzz_inputs.corpus(target)]
    assert len(read) >= 2
    assert any(read) != (target == "handshake")


def decode_to(payload):
    return lambda data: wire.Message(Envelope(), payload, len(data))


def index_error(data):
    raise IndexError


def new_answer(data, number=itertools.count()):  # noqa: B008
    return decode_to(SparseVector(9, [next(number) % 9], np.ones(1)))(data)


OUT_OF_ORDER = SparseVector.piece(9, 0, 9, np.array([5, 3], np.uint32), np.ones(2))
OUT_OF_RANGE = SparseVector.piece(9, 5, 8, np.array([8], np.uint32), np.ones(1))


@pytest.mark.parametrize(
    ("decode", "error"),
    [
        (index_error, IndexError),
        (new_answer, AssertionError),
        (decode_to(OUT_OF_ORDER), AssertionError),
        (decode_to(OUT_OF_RANGE), AssertionError),
    ],
    ids=["another error", "another answer each time", "indices out of order", "indices out of range"],
)
def test_a_wrong_decoder_is_noticed(monkeypatch, decode, error):
    monkeypatch.setattr(wire, "decode", decode)
    with pytest.raises(error):
        fuzzer.check(b"anything", "reference")
