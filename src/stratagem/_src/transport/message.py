"""``Message``: what travels between two tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Handler", "Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """A body, whose meaning the handler knows, and arrays that travel beside it without a copy.

    >>> import numpy as np
    >>> from stratagem._src.transport import Message
    >>> Message(b"rows", (np.arange(3),)).arrays[0]
    array([0, 1, 2])

    Args:
        body: Bytes.
        arrays: Arrays of any shape and any dtype but ``object``.
    """

    body: bytes = b""
    arrays: tuple[np.ndarray[Any, Any], ...] = ()


Handler: TypeAlias = Callable[[Message], Message]
"""Answers a message. Runs on a thread of the transport, concurrently with others."""
