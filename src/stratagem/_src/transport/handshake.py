"""The handshake: mutual authentication by a shared secret, and key agreement.

The client sends its identity and the identity of the server it expects. Both send a random challenge and an
X25519 public key. From the secret, the X25519 shared key and the transcript both derive (HKDF-SHA256) one
proof and one encryption key per direction. The client proves itself first; only then does the server.

A man in the middle that relays everything gains nothing: the keys are never sent, and the proof for one
task is invalid for any other. Sessions have forward secrecy: an attacker that learns the secret later
cannot decrypt them.

Every part has a fixed size, so an unauthenticated peer cannot make a task buffer more than a few hundred
bytes. Nothing is interpreted before the proof.
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
from stratagem._src.transport.byte_stream import PeerDisconnectedError
from stratagem._src.transport.cipher import KEY_BYTES
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials, SecretKind
from stratagem._src.transport.identity import IDENTITY_BYTES, Identity
from stratagem._src.transport.local_secret import local_secret_path

__all__ = ["client_handshake", "server_handshake"]

_PROTOCOL = b"stratagem-task-2"
_CHALLENGE_BYTES = 32
_PUBLIC_KEY_BYTES = 32
_PROOF_BYTES = 32
_OFFER_BYTES = len(_PROTOCOL) + 1 + _CHALLENGE_BYTES + _PUBLIC_KEY_BYTES
_HELLO_BYTES = _OFFER_BYTES + 2 * IDENTITY_BYTES
_WELCOME = b"\1"
_REFUSAL = bytes(1 + _PROOF_BYTES)
_ANOTHER_TASK = 0xFF
_SET_BOTH = "Set STRATAGEM_CLUSTER_SECRET or STRATAGEM_CLUSTER_SECRET_FILE to the same in both."


def server_handshake(
    connection: Connection,
    credentials: Credentials,
    own: Identity,
    deadline: float,
    admit: Callable[[], bool] = lambda: True,
) -> None:
    """Runs the server side: authenticates the client, and proves this task to it.

    Afterwards the connection is encrypted and its ``peer`` is set.

    Args:
        connection: The connection to the client.
        credentials: The credentials that both must have.
        own: The identity of this task, which the client must expect.
        deadline: When to give up.
        admit: Called when the client is authenticated, before the server confirms it; returns whether the
            client is admitted.

    Raises:
        UnauthenticatedError: If the client is not authenticated.
        OSError: If the client disconnects, or does not respond in time.
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
        raise UnauthenticatedError(f"It expects another task than {own}.")
    if theirs.kind != credentials.secret_kind:
        raise UnauthenticatedError(
            "The two tasks have secrets of different kinds, or one has none."
        )
    certificates = _certificates(connection, credentials, is_client=False)
    keys = _derive(credentials, private, theirs.public_key, hello + offer + certificates)
    proof = connection.receive_bytes(_PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, keys.client_proof):
        connection.send_bytes(_REFUSAL, deadline)
        raise UnauthenticatedError("The secrets of the two tasks differ.")
    connection.peer = _identity(peer)
    if not admit():
        raise PeerDisconnectedError("its connection was dropped for others during the handshake")
    connection.send_bytes(_WELCOME + keys.server_proof, deadline)
    if credentials.tls is None:
        connection.protect(sending_key=keys.to_client, receiving_key=keys.to_server)


def client_handshake(
    connection: Connection,
    credentials: Credentials,
    own: Identity,
    wanted: Identity,
    deadline: float,
) -> None:
    """Runs the client side: proves this task to the server, and authenticates the server.

    Afterwards the connection is encrypted and its ``peer`` is set.

    Raises:
        UnauthenticatedError: If the secrets differ, or the server is not the expected task.
        OSError: If the server disconnects, or does not respond in time.
    """
    private = X25519PrivateKey.generate()
    hello = _offer(credentials.secret_kind, private) + wanted.to_bytes() + own.to_bytes()
    connection.send_bytes(hello, deadline)
    try:
        offer = _receive(_OFFER_BYTES, connection, deadline)
    except PeerDisconnectedError:
        raise PeerDisconnectedError(
            "it closed the connection (does it use TLS, and this task not?)"
        ) from None
    theirs = _Offer.parse(offer)
    if theirs.kind == _ANOTHER_TASK:
        raise UnauthenticatedError(
            f"It says that it is not {wanted}. Give all tasks the same cluster, and each its own job and "
            "index."
        )
    if theirs.kind != credentials.secret_kind:
        raise UnauthenticatedError(_different_kinds(credentials.secret_kind, theirs.kind))
    certificates = _certificates(connection, credentials, is_client=True)
    keys = _derive(credentials, private, theirs.public_key, hello + offer + certificates)
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
    public_key: bytes

    @classmethod
    def parse(cls, offer: bytes) -> _Offer:
        return cls(offer[len(_PROTOCOL)], offer[-_PUBLIC_KEY_BYTES:])


def _offer(kind: int, private: X25519PrivateKey) -> bytes:
    challenge = secrets.token_bytes(_CHALLENGE_BYTES)
    return _PROTOCOL + bytes([kind]) + challenge + private.public_key().public_bytes_raw()


def _receive(num_bytes: int, connection: Connection, deadline: float) -> bytes:
    # One byte first: a peer with another protocol may send less than a hello, and wait for a response.
    received = connection.receive_bytes(1, deadline)
    if received == _PROTOCOL[:1]:
        received += connection.receive_bytes(len(_PROTOCOL) - 1, deadline)
    if received != _PROTOCOL:
        raise UnauthenticatedError(
            "It uses another protocol: it is another program, another version of stratagem, or uses TLS "
            "while this task does not. Set the STRATAGEM_TLS_ variables in both or in neither."
        )
    return received + connection.receive_bytes(num_bytes - len(_PROTOCOL), deadline)


def _derive(
    credentials: Credentials, private: X25519PrivateKey, theirs: bytes, transcript: bytes
) -> _Keys:
    try:
        shared_key = private.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise UnauthenticatedError("Its X25519 public key is invalid.") from None
    secret = (credentials.secret or "").encode(errors="surrogatepass")
    derivation = HKDF(
        SHA256(),
        length=2 * _PROOF_BYTES + 2 * KEY_BYTES,
        salt=hashlib.sha256(transcript).digest(),
        info=_PROTOCOL,
    )
    derived = derivation.derive(shared_key + secret)
    return _Keys(
        *(derived[start : start + KEY_BYTES] for start in range(0, len(derived), KEY_BYTES))
    )


def _certificates(connection: Connection, credentials: Credentials, is_client: bool) -> bytes:
    """Returns the digests of both certificates: a proxy that terminates TLS has another certificate."""
    if credentials.tls is None:
        return b""
    own, theirs = credentials.tls.own_certificate, connection.peer_certificate or b""
    in_order = (own, theirs) if is_client else (theirs, own)
    return b"".join(hashlib.sha256(certificate).digest() for certificate in in_order)


def _identity(data: bytes) -> Identity:
    try:
        return Identity.from_bytes(data)
    except ValueError:
        raise UnauthenticatedError("It does not send a valid identity.") from None


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
