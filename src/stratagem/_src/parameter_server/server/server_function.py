"""``ServerFunction``: what a client sends to a server to be called there on a variable."""

from __future__ import annotations

import abc
from typing import Any

from stratagem._src.parameter_server.server.stored_array import Array, StoredArray
from stratagem._src.variables.updates import Update

__all__ = ["INITIALIZE", "ROW_FUNCTION", "WHOLE_FUNCTION", "ServerFunction", "concerns_rows"]

WHOLE_FUNCTION = "call"
"""Name of an update by a function whose operands are arrays."""

ROW_FUNCTION = "call_on_rows"
"""Name of an update by a function whose operands are values and the indices of their rows."""

INITIALIZE = "initialize"
"""Name of the update by a function that gives a variable its first value."""


def concerns_rows(update: Update) -> bool:
    """Returns whether an update's operands are values and the indices of their rows."""
    return update.sparse or update.name == ROW_FUNCTION


class ServerFunction(abc.ABC):
    """Something that changes a stored array where it is. It is pickled and sent once.

    Attributes:
        may_refuse: Whether ``call`` may raise though ``check`` did not.
        is_update: Whether it is an update of the user's, to be counted with others.
    """

    may_refuse = True
    is_update = True

    def check(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:  # noqa: B027
        """Raises what is known to be wrong with a call, and changes nothing."""

    @abc.abstractmethod
    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> Any:
        """Changes ``stored`` and returns what the caller asked for, if anything.

        Called by several threads, for several arrays. What must be atomic happens under
        ``stored.lock``.
        """
