"""How two tasks prove to each other that they know the same secret, without sending it.

Both say which protocol they speak and send a random challenge. The one that connected answers first:
a code made from the secret and both challenges. Only then does the other answer. Every part has a
fixed size, so a stranger can make nobody keep more than a hundred bytes, and nothing is interpreted
before the proof.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from stratagem.cluster.transport.connection import Connection, PeerGone
from stratagem.core.errors import UnauthenticatedError

__all__ = ["greet_client", "greet_server"]

_PROTOCOL = b"stratagem-task-1"
_CHALLENGE_BYTES = 32
_CODE_BYTES = 32
_NO_SECRET, _SECRET = b"\0", b"\1"
_WELCOME = b"\1"
_REFUSAL = bytes(1 + _CODE_BYTES)
_HELLO_BYTES = len(_PROTOCOL) + 1 + _CHALLENGE_BYTES


def greet_client(connection: Connection, secret: str | None, deadline: float) -> None:
    """Makes whoever connected prove that it knows the secret.

    Raises:
        UnauthenticatedError: If it does not.
        OSError: If it goes away, or does not answer in time.
    """
    try:
        asks_secret, theirs = _receive_hello(connection, deadline)
    except UnauthenticatedError:
        connection.send_bytes(_PROTOCOL, deadline)
        raise
    mine = secrets.token_bytes(_CHALLENGE_BYTES)
    connection.send_bytes(_hello(secret, mine), deadline)
    if asks_secret is not (secret is not None):
        raise UnauthenticatedError("Only one of the two tasks has a secret.")
    code = connection.receive_bytes(_CODE_BYTES, deadline)
    if not hmac.compare_digest(code, _code(secret, b"client", theirs, mine)):
        connection.send_bytes(_REFUSAL, deadline)
        raise UnauthenticatedError("The secrets of the two tasks differ.")
    connection.send_bytes(_WELCOME + _code(secret, b"server", theirs, mine), deadline)


def greet_server(connection: Connection, secret: str | None, deadline: float) -> None:
    """Proves to a server that this task knows the secret, and has the server prove the same.

    Raises:
        UnauthenticatedError: If one of them does not know the other's secret.
        OSError: If the server goes away, or does not answer in time.
    """
    mine = secrets.token_bytes(_CHALLENGE_BYTES)
    connection.send_bytes(_hello(secret, mine), deadline)
    try:
        has_secret, theirs = _receive_hello(connection, deadline)
    except PeerGone:
        raise PeerGone("it closed the connection (does it use TLS, and this task not?)") from None
    if has_secret is not (secret is not None):
        with_it, without = ("It", "this task") if has_secret else ("This task", "it")
        raise UnauthenticatedError(
            f"{with_it} has a cluster secret and {without} has not. Set STRATAGEM_CLUSTER_SECRET or "
            "STRATAGEM_CLUSTER_SECRET_FILE to the same in both."
        )
    connection.send_bytes(_code(secret, b"client", mine, theirs), deadline)
    answer = connection.receive_bytes(1 + _CODE_BYTES, deadline)
    expected = _WELCOME + _code(secret, b"server", mine, theirs)
    if not hmac.compare_digest(answer, expected):
        raise UnauthenticatedError(
            "It does not know this task's cluster secret. Set STRATAGEM_CLUSTER_SECRET or "
            "STRATAGEM_CLUSTER_SECRET_FILE to the same in both."
        )


def _hello(secret: str | None, challenge: bytes) -> bytes:
    return _PROTOCOL + (_NO_SECRET if secret is None else _SECRET) + challenge


def _receive_hello(connection: Connection, deadline: float) -> tuple[bool, bytes]:
    # One byte first: whoever speaks something else may send less than a hello and wait.
    first = connection.receive_bytes(1, deadline)
    hello = first
    if first == _PROTOCOL[:1]:
        hello += connection.receive_bytes(_HELLO_BYTES - 1, deadline)
    protocol, rest = hello[: len(_PROTOCOL)], hello[len(_PROTOCOL) :]
    if protocol != _PROTOCOL:
        raise UnauthenticatedError(
            "It speaks something else: another program, another version of stratagem, or TLS when "
            "this task does not. Set the STRATAGEM_TLS_ variables in both or in neither."
        )
    return rest[:1] == _SECRET, rest[1:]


def _code(secret: str | None, who: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.new((secret or "").encode(), who + client + server, hashlib.sha256).digest()
