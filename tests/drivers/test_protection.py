"""Encryption and tags on real connections: all works as without them, and nobody in between gets anywhere."""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time

import jobs
import numpy as np
import pytest

import sparsewire as sw
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Envelope
from sparsewire.drivers.tcp.mesh import Mesh
from sparsewire.drivers.tcp.protection import Protection, encryption_of
from sparsewire.drivers.tcp.sockets import listen
from sparsewire.drivers.tcp.tags import TAG_BYTES
from sparsewire.vector import SparseVector

pytest.importorskip("cryptography")

SECRET = "a secret for tests"
TLS, TAGS = Protection(tls=True), Protection(authenticate_frames=True)
NAMES = {"SPARSEWIRE_TLS": TLS, "SPARSEWIRE_AUTHENTICATE_FRAMES": TAGS}
both_ways = pytest.mark.parametrize("protection", [TLS, TAGS], ids=["tls", "tags"])

# Every way in which bytes travel: small and large, blocking and not, groups, aggregators, errors.
EVERYTHING = """
def main(rank, size):
    with sw.init(timeout=60, aggregators=1) as comm:
        if comm.is_aggregator:
            comm.serve()
            return None
        sums = [float(comm.allreduce(np.full(n, 2.0**rank), algorithm=name).sum()) / n
                for n in (1, 1000, 1_000_000) for name in ("allgather_sum", "dense_ring", "omnireduce")]
        requests = [comm.iallreduce(np.full(50_000, 2.0**rank), name=str(i)) for i in range(5)]
        sums += [float(request.wait()[0]) for request in requests]
        refused = tried(lambda: comm.allreduce("nonsense" if rank == 1 else np.ones(3)))
        group = comm.split(0)
        sums.append(float(group.allreduce(np.full(3, 2.0**rank))[0]))
        settings = group._driver.transport._protection
        group.close()
        return sorted(set(sums)), refused["error"], [bool(settings.tls), settings.authenticate_frames]
"""


@pytest.mark.parametrize("variable", NAMES)
def test_everything_works_with_protection(variable):
    outcomes = jobs.run(EVERYTHING, 4, environments={rank: {variable: "1"} for rank in range(4)})
    settings = [NAMES[variable].tls, NAMES[variable].authenticate_frames]
    assert [outcome["result"] for outcome in outcomes] == [[[7.0], "InputError", settings]] * 3 + [None]


@pytest.mark.parametrize("variable", NAMES)
@pytest.mark.parametrize("who", [0, 1, 2])
def test_protection_on_one_rank_only_is_an_error_on_all_at_once(variable, who):
    program = "def main(rank, size):\n    sw.init(timeout=30)\n"
    started = time.time()
    outcomes = jobs.run(program, 3, environments={who: {variable: "1"}})
    option = variable.removeprefix("SPARSEWIRE_").lower()
    for outcome in outcomes:
        assert outcome["error"] == "CallMismatchError"
        assert f"{option}=True" in outcome["message"]
        assert f"rank {who} has {option}=True" in outcome["message"]
        assert outcome["at"] - started < 15


def test_death_is_noticed_at_once_with_tls():
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=30, tls=True)
            comm.barrier()
            if rank == 1:
                die()
            comm.allreduce(np.ones(100_000), algorithm="dense_ring")
            comm.barrier()
        """,
        3,
    )
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome["error"] == "PeerLostError"
        assert "rank 1 is gone" in outcome["message"]


# -- two ends in one thread ----------------------------------------------------------------------


class End:
    """One rank's connections, and what came in."""

    def __init__(self, rank, protection, secret=SECRET):
        self.messages, self.errors = [], []
        self.mesh = Mesh(rank, 2, listen(("127.0.0.1", 0)), secret, 20.0, protection)
        self.mesh.attach(lambda source, message: self.messages.append(message.payload), self.errors.append)

    def post(self, peer, values):
        [outgoing] = self.mesh.post([peer], wire.encode(SparseVector.from_dense(values), Envelope()))
        return outgoing


@contextlib.contextmanager
def pair(protection, proxy=None):
    """Rank 0 dials rank 1, through a proxy if there is one."""
    a, b = End(0, protection), End(1, protection)
    with contextlib.closing(a.mesh), contextlib.closing(b.mesh), contextlib.ExitStack() as stack:
        target = b.mesh.address
        a.mesh.addresses = {1: stack.enter_context(proxy(target)).address if proxy else target}
        b.mesh.addresses = {0: a.mesh.address}
        yield a, b


def settle(*ends, until=lambda: False, seconds=0.5):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        for one in ends:
            one.mesh.poll(0.002)


@both_ways
@pytest.mark.parametrize("count", [1, 10_000, 5_000_000])
def test_messages_arrive_as_they_were_sent(protection, count):
    with pair(protection) as (a, b):
        sent = [np.arange(count, dtype=np.int32) + 1, np.full(count, 7, np.int32)]
        outgoing = [a.post(1, values) for values in sent] + [b.post(0, sent[1])]
        settle(a, b, until=lambda: len(b.messages) == 2 and len(a.messages) == 1, seconds=30)
        assert [one.done for one in outgoing] == [True] * 3
        for received, values in zip(b.messages + a.messages, [*sent, sent[1]], strict=True):
            assert np.array_equal(received.to_dense(), values)


@both_ways
def test_unsent_bytes_may_be_kept_in_the_middle_of_a_message(protection):
    with pair(protection) as (a, b):
        a.post(1, np.ones(1, np.int32))
        settle(a, b, until=lambda: len(b.messages) == 1, seconds=20)
        numbers = np.full(8_000_000, 5, np.int32)
        outgoing = a.post(1, numbers)  # the connection takes a part of it
        assert not outgoing.done
        outgoing.keep()
        numbers[:] = 6
        settle(a, b, until=lambda: len(b.messages) == 2, seconds=30)
        assert set(b.messages[1].to_dense()) == {5}


def test_tls_is_version_1_3_and_hides_what_is_sent():
    with pair(TLS, Proxy) as (a, b):
        a.post(1, np.frombuffer(b"sixteen of these" * 64, np.int32))
        settle(a, b, until=lambda: bool(b.messages), seconds=20)
        [link] = a.mesh._links[1]
        assert link.sock._socket.version() == "TLSv1.3"
        assert b"sixteen of these" not in Proxy.carried
        assert wire.MAGIC not in Proxy.carried


# -- in between ----------------------------------------------------------------------------------


class Proxy:
    """Carries a connection, and changes what the dialler sends if it is told to."""

    carried = b""
    tamper = staticmethod(lambda data: data)

    def __init__(self, target):
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = self._server.getsockname()[:2]
        Proxy.carried, Proxy.tamper = b"", staticmethod(lambda data: data)
        self._sockets = [self._server]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, source, target, dialled):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                Proxy.carried += data
                target.sendall(Proxy.tamper(data) if dialled else data)
            target.shutdown(socket.SHUT_WR)


def flip(at):
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def repeat(data):
    return data + data


def without_tag_of_the_first(data):
    """The message was 112 bytes and a value; what comes in its place has another tag."""
    return data[:-TAG_BYTES] + bytes(TAG_BYTES)


@pytest.mark.parametrize(
    ("protection", "tamper", "says"),
    [
        (TLS, flip(-1), "not what was encrypted"),
        (TLS, flip(30), "not what was encrypted"),
        (TLS, repeat, "not what was encrypted"),
        (TAGS, flip(-1), "tag of a message is wrong"),
        (TAGS, repeat, "tag of a message is wrong"),
        (TAGS, without_tag_of_the_first, "tag of a message is wrong"),
    ],
)
def test_what_somebody_in_between_changes_is_a_wire_error_that_names_the_sender(protection, tamper, says):
    with pair(protection, Proxy) as (a, b):
        a.post(1, np.full(3, 7, np.int32))
        settle(a, b, until=lambda: bool(b.messages), seconds=20)
        Proxy.tamper = staticmethod(tamper)
        a.post(1, np.full(3, 8, np.int32))
        settle(a, b, until=lambda: bool(b.errors), seconds=20)
        assert isinstance(b.errors[0], sw.WireError)
        assert "from rank 0: " in str(b.errors[0])
        assert says in str(b.errors[0])
        wrong = [message for message in b.messages[1:] if message.to_dense()[0] != 8]
        assert not wrong
        assert len(b.messages) <= 2  # a repeated message came once
        Proxy.tamper = staticmethod(lambda data: data)
        b.post(0, np.full(3, 9, np.int32))  # the other end can be told
        settle(a, b, until=lambda: bool(a.messages), seconds=20)
        assert a.messages[-1].to_dense()[0] == 9


def test_message_with_the_checksums_of_another_is_found_by_its_tag():
    """Somebody in between who makes a frame of his own has every checksum right, and no tag."""
    forged = b"".join(wire.encode(SparseVector.from_dense(np.full(3, 666, np.int32)), Envelope()))
    for protection, gets_in in ((Protection(), True), (TAGS, False)):
        with pair(protection, Proxy) as (a, b):
            a.post(1, np.full(3, 7, np.int32))
            settle(a, b, until=lambda b=b: bool(b.messages), seconds=20)
            Proxy.tamper = staticmethod(lambda data: forged + data[len(forged) :])
            a.post(1, np.full(3, 8, np.int32))
            settle(a, b, until=lambda b=b: len(b.messages) == 2 or b.errors, seconds=20)
            assert bool(b.errors) != gets_in
            assert any(message.to_dense()[0] == 666 for message in b.messages) == gets_in


def test_somebody_who_terminates_tls_in_between_is_refused():
    """It has a certificate of its own, and everything else goes through."""
    from sparsewire.drivers.tcp.tls import _contexts, _file, _make_certificate

    certificate, key = _make_certificate()
    pem = ssl.DER_cert_to_PEM_cert(certificate).encode()
    with _file(pem) as certificate_file, _file(key) as key_file:
        accepting, dialling = _contexts(certificate_file, key_file)

    class Terminator(Proxy):
        def _accept(self):
            with contextlib.suppress(OSError):
                while True:
                    near, _ = self._server.accept()
                    far = socket.create_connection(self._target)
                    hello = far.recv(4096)
                    near.sendall(hello)
                    with contextlib.suppress(OSError):
                        near, far = accepting.wrap_socket(near, server_side=True), dialling.wrap_socket(far)
                        far.sendall(near.recv(4096))  # the dialler's proof
                        near.sendall(far.recv(4096))  # and what is said to it
                    self._sockets += [near, far]

    with pair(TLS, Terminator) as (a, b):
        a.post(1, np.full(3, 7, np.int32))
        settle(a, b, until=lambda: bool(a.mesh.lost), seconds=20)
        assert "refused the proof" in a.mesh.lost[1]
        assert b.mesh.refused == 1
        assert not b.messages


def test_strangers_who_begin_tls_do_not_disturb_the_ranks():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def say(*words):
        """Begin as TLS does, and say something else."""
        with socket.create_connection(b.mesh.address, timeout=20) as stranger:
            stranger.recv(4096)
            for word in words:
                with contextlib.suppress(OSError):
                    stranger.sendall(word)

    def begin_tls_and(say_in_the_end):
        with socket.create_connection(b.mesh.address, timeout=20) as stranger:
            stranger.recv(4096)
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(stranger) as encrypted,
                socket.socket(fileno=os.dup(encrypted.fileno())) as beneath,
            ):
                say_in_the_end(encrypted, beneath)

    def garbage_inside(encrypted, _):
        encrypted.sendall(bytes(1000))

    def garbage_outside(_, beneath):
        beneath.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))

    def be_strangers():
        for _ in range(5):
            for words in ((b"\x16",), (b"\x16\x03\x01" + bytes(500),), (b"\x15" * 1000,), ()):
                say(*words)
            begin_tls_and(garbage_inside)
            begin_tls_and(garbage_outside)

    with pair(TLS) as (a, b):
        strangers = threading.Thread(target=be_strangers)
        strangers.start()
        settle(b, until=lambda: not strangers.is_alive(), seconds=30)
        a.post(1, np.full(3, 7, np.int32))
        settle(a, b, until=lambda: bool(b.messages), seconds=20)
        settle(a, b, seconds=1.2)  # an error that concerns others would be told by now
        assert len(b.messages) == 1
        assert b.mesh.refused >= 10
        assert not b.errors
        assert not [*b.mesh._unproven]


# -- certificates --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority that has signed "good", and "bad", which has signed itself."""
    from datetime import datetime, timedelta, timezone

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("certificates")

    def make(name, issuer=None):
        key = ec.generate_private_key(ec.SECP256R1())
        issuer_name, issuer_key = issuer or (name, key)
        now = datetime.now(timezone.utc)
        subject, issued_by = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)]) for one in (name, issuer_name)
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issued_by)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .sign(issuer_key, hashes.SHA256())
        )
        encoding = serialization.Encoding.PEM
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(encoding))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return name, key

    authority = make("authority")
    make("good", authority)
    make("bad")
    return folder


def tls_with(folder, name):
    return Protection(tls=sw.TLS(folder / f"{name}.pem", folder / f"{name}.key", folder / "authority.pem"))


def test_certificates_of_the_user(certificates):
    with pair(tls_with(certificates, "good")) as (a, b):
        a.post(1, np.full(3, 7, np.int32))
        settle(a, b, until=lambda: bool(b.messages), seconds=20)
        assert len(b.messages) == 1


@pytest.mark.parametrize(("dialler", "acceptor"), [("good", "bad"), ("bad", "good")])
def test_certificate_of_another_authority_is_refused(certificates, dialler, acceptor):
    a, b = End(0, tls_with(certificates, dialler)), End(1, tls_with(certificates, acceptor))
    with contextlib.closing(a.mesh), contextlib.closing(b.mesh):
        a.mesh.addresses = {1: b.mesh.address}
        a.post(1, np.full(3, 7, np.int32))
        settle(a, b, until=lambda: bool(a.mesh.lost) and b.mesh.refused, seconds=20)
        assert 1 in a.mesh.lost
        assert "TLS" in a.mesh.lost[1] or "certificate" in a.mesh.lost[1] or "alert" in a.mesh.lost[1]
        assert b.mesh.refused == 1
        assert not b.messages


def test_file_that_is_no_certificate_is_named(certificates, tmp_path):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for files in (
        (wrong, certificates / "good.key", certificates / "authority.pem"),
        (certificates / "good.pem", certificates / "bad.key", certificates / "authority.pem"),
        (certificates / "good.pem", certificates / "good.key", tmp_path / "missing.pem"),
    ):
        with pytest.raises(sw.InputError, match="cannot be used"):
            encryption_of(Protection(tls=sw.TLS(*files)))


@pytest.mark.parametrize("variable", NAMES)
def test_run_passes_on_what_protects_the_ranks(variable, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sparsewire as sw\nwith sw.init() as comm:\n    comm.barrier()\n"
        "    print(comm._driver.transport._protection)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sparsewire", "run", "-n", "2", str(script)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, variable: "1"},
    )
    assert done.stdout.count(str(NAMES[variable])) == 2


def test_missing_package_is_named():
    code = """
import sys
sys.modules["cryptography"] = None
import sparsewire as sw
from sparsewire.drivers.tcp.mesh import Mesh
from sparsewire.drivers.tcp.protection import Protection
from sparsewire.drivers.tcp.sockets import listen
try:
    Mesh(0, 2, listen(("127.0.0.1", 0)), "a secret for tests", 1.0, Protection(tls=True))
except sw.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cryptography is not installed: pip install 'sparsewire[tls]'" in done.stdout


def test_private_key_does_not_stay_in_a_file(tmp_path, monkeypatch):
    from sparsewire.drivers.tcp.tls import Encryption

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Encryption._self_signed.__wrapped__(Encryption)
    assert not list(tmp_path.iterdir())
