"""``Message``: the unit of communication between two tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Handler", "Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """A body of bytes that the handler interprets, and arrays that are sent without a copy.

    >>> import numpy as np
    >>> from stratagem._src.transport import Message
    >>> Message(b"rows", (np.arange(3),)).arrays[0]
    array([0, 1, 2])

    Args:
        body: Bytes.
        arrays: Arrays of any shape and any dtype except ``object``.
    """

    body: bytes = b""
    arrays: tuple[np.ndarray[Any, Any], ...] = ()


Handler: TypeAlias = Callable[[Message], Message]
"""Returns the response to a request. Runs in a thread of the transport, concurrently with others."""
