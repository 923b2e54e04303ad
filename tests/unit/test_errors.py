"""The tree of exceptions: which types a caller can catch, and how they travel."""

import inspect

import pytest

import sparsewire as sw
from sparsewire import errors
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Abort, Envelope
from sparsewire.drivers import execution
from sparsewire.drivers.tcp import handshake

TREE = {
    "InputError": ("SparsewireError", "ValueError"),
    "CallMismatchError": ("SparsewireError",),
    "MissingExtraError": ("SparsewireError", "ImportError"),
    "TransportError": ("SparsewireError",),
    "PeerLostError": ("TransportError",),
    "CollectiveTimeout": ("TransportError", "TimeoutError"),
    "WireError": ("TransportError",),
}


def test_tree_is_the_one_in_the_docstring():
    assert {"SparsewireError", *TREE} == set(errors.__all__)
    for name, parents in TREE.items():
        assert tuple(c.__name__ for c in getattr(errors, name).__bases__) == parents
        assert name in errors.__doc__


def test_module_has_no_other_exceptions():
    defined = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_travels_as_itself(name):
    kind = getattr(errors, name)
    frame = b"".join(bytes(buffer) for buffer in wire.encode(Abort(kind("why")), Envelope()))
    got = wire.decode(frame).payload.error
    assert (type(got), str(got)) == (kind, "why")


@pytest.mark.parametrize(
    ("error", "arrives_as"),
    [
        (handshake.AuthenticationError("why"), sw.TransportError),
        (execution.DeadlockError("why"), sw.SparsewireError),
    ],
)
def test_error_that_the_others_do_not_know_travels_as_its_nearest_ancestor(error, arrives_as):
    frame = b"".join(bytes(buffer) for buffer in wire.encode(Abort(error), Envelope()))
    assert type(wire.decode(frame).payload.error) is arrives_as


def test_missing_extra_says_how_to_install_it():
    assert "pip install 'sparsewire[torch]'" in str(errors.MissingExtraError.of("torch", "torch"))
