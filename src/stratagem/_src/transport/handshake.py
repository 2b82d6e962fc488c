"""How two tasks prove to each other that they know the same secret and are whom they want to talk to.

The one that connects says whom it wants and who it is. Both send a random challenge and one half of a
key exchange (X25519). From the secret, the exchange and all that was said both derive (HKDF-SHA256) a
proof for each direction and a key for each direction. The one that connected proves itself first; only
then does the other.

Somebody between the two who passes everything on gets nothing by it: the keys never travel, and the
proof for one task fits no other. Who learns the secret later cannot read what was sent before.

Every part has a fixed size, so a stranger can make nobody keep more than a few hundred bytes, and
nothing is interpreted before the proof.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stratagem._src.core.errors import UnauthenticatedError
from stratagem._src.transport.byte_stream import PeerGone
from stratagem._src.transport.cipher import KEY_BYTES
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials, SecretKind
from stratagem._src.transport.identity import IDENTITY_BYTES, Identity
from stratagem._src.transport.local_secret import local_secret_path

__all__ = ["greet_client", "greet_server"]

_PROTOCOL = b"stratagem-task-2"
_CHALLENGE_BYTES = 32
_EXCHANGE_BYTES = 32
_PROOF_BYTES = 32
_OFFER_BYTES = len(_PROTOCOL) + 1 + _CHALLENGE_BYTES + _EXCHANGE_BYTES
_HELLO_BYTES = _OFFER_BYTES + 2 * IDENTITY_BYTES
_WELCOME = b"\1"
_REFUSAL = bytes(1 + _PROOF_BYTES)
_ANOTHER_TASK = 0xFF
_SET_BOTH = "Set STRATAGEM_CLUSTER_SECRET or STRATAGEM_CLUSTER_SECRET_FILE to the same in both."


def greet_client(
    connection: Connection,
    credentials: Credentials,
    own: Identity,
    deadline: float,
    admit: Callable[[], bool] = lambda: True,
) -> None:
    """Makes whoever connected prove that it knows the secret and wants this task.

    Afterwards the connection is protected, and knows its peer.

    Args:
        connection: With whoever connected.
        credentials: What it has to prove.
        own: Whom it has to want.
        deadline: When to give up.
        admit: Called when it has proved itself, and before it is told so: whether it may stay.

    Raises:
        UnauthenticatedError: If it does not.
        OSError: If it goes away, or does not answer in time.
    """
    try:
        hello = _receive(_HELLO_BYTES, connection, deadline)
    except UnauthenticatedError:
        connection.send_bytes(_PROTOCOL, deadline)
        raise
    theirs = _Offer.parse(hello[:_OFFER_BYTES])
    wanted, peer = hello[_OFFER_BYTES:-IDENTITY_BYTES], hello[-IDENTITY_BYTES:]
    is_wanted = wanted == own.to_bytes()
    private = X25519PrivateKey.generate()
    offer = _offer(credentials.secret_kind if is_wanted else _ANOTHER_TASK, private)
    connection.send_bytes(offer, deadline)
    if not is_wanted:
        raise UnauthenticatedError(f"It wants another task than {own}.")
    if theirs.kind != credentials.secret_kind:
        raise UnauthenticatedError(
            "The two tasks have secrets of different kinds, or one has none."
        )
    certificates = _certificates(connection, credentials, is_client=False)
    keys = _derive(credentials, private, theirs.exchange, hello + offer + certificates)
    proof = connection.receive_bytes(_PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, keys.client_proof):
        connection.send_bytes(_REFUSAL, deadline)
        raise UnauthenticatedError("The secrets of the two tasks differ.")
    connection.peer = _identity(peer)
    if not admit():
        raise PeerGone("its connection was given up for others while it proved who it is")
    connection.send_bytes(_WELCOME + keys.server_proof, deadline)
    if credentials.tls is None:
        connection.protect(sending_key=keys.to_client, receiving_key=keys.to_server)


def greet_server(
    connection: Connection,
    credentials: Credentials,
    own: Identity,
    wanted: Identity,
    deadline: float,
) -> None:
    """Proves to a server that this task knows the secret, and has the server prove the same.

    Afterwards the connection is protected, and knows its peer.

    Raises:
        UnauthenticatedError: If one of them does not know the other's secret, or the server is not the
            task that is wanted.
        OSError: If the server goes away, or does not answer in time.
    """
    private = X25519PrivateKey.generate()
    hello = _offer(credentials.secret_kind, private) + wanted.to_bytes() + own.to_bytes()
    connection.send_bytes(hello, deadline)
    try:
        offer = _receive(_OFFER_BYTES, connection, deadline)
    except PeerGone:
        raise PeerGone("it closed the connection (does it use TLS, and this task not?)") from None
    theirs = _Offer.parse(offer)
    if theirs.kind == _ANOTHER_TASK:
        raise UnauthenticatedError(
            f"It says that it is not {wanted}. Give the same cluster to all tasks, and each its own "
            "job and index."
        )
    if theirs.kind != credentials.secret_kind:
        raise UnauthenticatedError(_different_kinds(credentials.secret_kind, theirs.kind))
    certificates = _certificates(connection, credentials, is_client=True)
    keys = _derive(credentials, private, theirs.exchange, hello + offer + certificates)
    connection.send_bytes(keys.client_proof, deadline)
    answer = connection.receive_bytes(1 + _PROOF_BYTES, deadline)
    if not hmac.compare_digest(answer, _WELCOME + keys.server_proof):
        raise UnauthenticatedError(_different_secrets(credentials.secret_kind))
    connection.peer = wanted
    if credentials.tls is None:
        connection.protect(sending_key=keys.to_server, receiving_key=keys.to_client)


class _Keys(NamedTuple):
    client_proof: bytes
    server_proof: bytes
    to_server: bytes
    to_client: bytes


class _Offer(NamedTuple):
    kind: int
    exchange: bytes

    @classmethod
    def parse(cls, offer: bytes) -> _Offer:
        return cls(offer[len(_PROTOCOL)], offer[-_EXCHANGE_BYTES:])


def _offer(kind: int, private: X25519PrivateKey) -> bytes:
    challenge = secrets.token_bytes(_CHALLENGE_BYTES)
    return _PROTOCOL + bytes([kind]) + challenge + private.public_key().public_bytes_raw()


def _receive(num_bytes: int, connection: Connection, deadline: float) -> bytes:
    # One byte first: whoever speaks something else may send less than is awaited, and wait.
    received = connection.receive_bytes(1, deadline)
    if received == _PROTOCOL[:1]:
        received += connection.receive_bytes(len(_PROTOCOL) - 1, deadline)
    if received != _PROTOCOL:
        raise UnauthenticatedError(
            "It speaks something else: another program, another version of stratagem, or TLS when "
            "this task does not. Set the STRATAGEM_TLS_ variables in both or in neither."
        )
    return received + connection.receive_bytes(num_bytes - len(_PROTOCOL), deadline)


def _derive(
    credentials: Credentials, private: X25519PrivateKey, theirs: bytes, transcript: bytes
) -> _Keys:
    try:
        exchanged = private.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise UnauthenticatedError("Its half of the key exchange is not one.") from None
    secret = (credentials.secret or "").encode(errors="surrogatepass")
    derivation = HKDF(
        SHA256(),
        length=2 * _PROOF_BYTES + 2 * KEY_BYTES,
        salt=hashlib.sha256(transcript).digest(),
        info=_PROTOCOL,
    )
    derived = derivation.derive(exchanged + secret)
    return _Keys(
        *(derived[start : start + KEY_BYTES] for start in range(0, len(derived), KEY_BYTES))
    )


def _certificates(connection: Connection, credentials: Credentials, is_client: bool) -> bytes:
    """Returns digests of both certificates: who ends TLS on the way has another one."""
    if credentials.tls is None:
        return b""
    own, theirs = credentials.tls.own_certificate, connection.peer_certificate or b""
    in_order = (own, theirs) if is_client else (theirs, own)
    return b"".join(hashlib.sha256(certificate).digest() for certificate in in_order)


def _identity(data: bytes) -> Identity:
    try:
        return Identity.from_bytes(data)
    except ValueError:
        raise UnauthenticatedError("It does not say who it is.") from None


def _different_kinds(ours: int, theirs: int) -> str:
    if SecretKind.CLUSTER not in (ours, theirs):
        return f"Only one of the two tasks has a secret. {_SET_BOTH}"
    has, has_not = ("It", "this task") if theirs == SecretKind.CLUSTER else ("This task", "it")
    return f"{has} has a cluster secret and {has_not} has not. {_SET_BOTH}"


def _different_secrets(kind: int) -> str:
    if kind == SecretKind.USER:
        return (
            f"It does not know the secret of this user on this machine, in {local_secret_path()}: it "
            f"runs as another user, or with another home. {_SET_BOTH}"
        )
    return f"It does not know this task's cluster secret. {_SET_BOTH}"
