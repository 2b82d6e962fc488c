"""How two nodes prove to each other that they know the same secret, without sending it.

Node 0 sends a random challenge. The other answers with one of its own, its rank and the number of
nodes it expects, sealed with a key made from the secret and both challenges. Node 0 answers sealed
with the same key. A message that was overheard earlier fits no new challenge.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Any

from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.launch.frames import Seal, frame, to_json

__all__ = ["Answer", "Seals", "answer_challenge", "challenge", "check_answer", "refusal"]

_PROTOCOL = "stratagem-rendezvous-1"
_CHALLENGE_CHARACTERS = 64


@dataclass(frozen=True)
class Seals:
    """Both directions of a conversation between node 0 and another."""

    to_node_0: Seal
    from_node_0: Seal


@dataclass(frozen=True)
class Answer:
    """Who answered, and how to speak with it."""

    node: int
    num_nodes: int
    seals: Seals


def challenge() -> tuple[str, bytes]:
    """Returns a new challenge, and the frame that carries it."""
    nonce = secrets.token_hex(_CHALLENGE_CHARACTERS // 2)
    return nonce, _plain({"protocol": _PROTOCOL, "challenge": nonce})


def answer_challenge(secret: str, body: bytes, node: int, num_nodes: int) -> tuple[Seals, bytes]:
    """Returns the seals for the conversation, and the frame that answers node 0."""
    message = to_json(body)
    nonce = message.get("challenge")
    if message.get("protocol") != _PROTOCOL or not _is_nonce(nonce):
        raise RendezvousError(
            f"--rdzv-endpoint must be where 'stratagem run' of the same version runs as node 0 "
            f"({_PROTOCOL}), but something else answers there."
        )
    mine = secrets.token_hex(_CHALLENGE_CHARACTERS // 2)
    seals = _seals(secret, str(nonce), mine)
    claim = {"challenge": mine, "node": node, "num_nodes": num_nodes}
    proof = seals.to_node_0.seal(claim)[4:].hex()
    return seals, _plain({"challenge": mine, "proof": proof})


def check_answer(secret: str, nonce: str, body: bytes) -> Answer:
    """Returns who answered a challenge.

    Raises:
        RendezvousError: If the answer is malformed or was made without the secret.
    """
    message = to_json(body)
    theirs, proof = message.get("challenge"), message.get("proof")
    if not _is_nonce(theirs) or not isinstance(proof, str):
        raise RendezvousError("An answer must have a challenge and a proof.")
    try:
        sealed = bytes.fromhex(proof)
    except ValueError:
        raise RendezvousError("A proof must be written in hexadecimal digits.") from None
    seals = _seals(secret, nonce, str(theirs))
    claim = seals.to_node_0.open(sealed)
    node, num_nodes = claim.get("node"), claim.get("num_nodes")
    if not isinstance(node, int) or not isinstance(num_nodes, int):
        raise RendezvousError("An answer must have a node and a number of nodes.")
    return Answer(node, num_nodes, seals)


def refusal(reason: str, may_retry: bool) -> bytes:
    """Returns the frame that refuses a node."""
    return _plain({"refused": reason, "may_retry": may_retry})


def _seals(secret: str, challenge_0: str, challenge_1: str) -> Seals:
    message = f"{_PROTOCOL} {challenge_0} {challenge_1}".encode()
    key = hmac.new(secret.encode(), message, hashlib.sha256).digest()
    return Seals(Seal(key, "to node 0"), Seal(key, "from node 0"))


def _is_nonce(nonce: Any) -> bool:
    return isinstance(nonce, str) and len(nonce) == _CHALLENGE_CHARACTERS


def _plain(message: dict[str, Any]) -> bytes:
    return frame(json.dumps(message).encode())
