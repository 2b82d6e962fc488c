"""``ServerFunction``: a function that a client sends to a server, to run on a stored variable."""

from __future__ import annotations

import abc
from typing import Any

from stratagem._src.parameter_server.server.stored_array import Array, StoredArray
from stratagem._src.variables.updates import Update

__all__ = ["DENSE_FUNCTION", "INITIALIZE", "ROW_FUNCTION", "ServerFunction", "is_row_update"]

DENSE_FUNCTION = "call"
"""Name of an update by a function whose operands are arrays."""

ROW_FUNCTION = "call_on_rows"
"""Name of an update by a function whose operands are values and the indices of their rows."""

INITIALIZE = "initialize"
"""Name of the update by a function that sets a variable's initial value."""


def is_row_update(update: Update) -> bool:
    """Returns whether an update's operands are values and the indices of their rows."""
    return update.sparse or update.name == ROW_FUNCTION


class ServerFunction(abc.ABC):
    """Updates a stored array in place. It is pickled and sent to a server once.

    Attributes:
        may_refuse: Whether ``call`` may raise although ``check`` passed.
        is_update: Whether it is a user's update, which counts in the number of updates.
    """

    may_refuse = True
    is_update = True

    def check(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:  # noqa: B027
        """Raises if the call is known to be invalid; changes nothing."""

    @abc.abstractmethod
    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> Any:
        """Updates ``stored`` and returns the caller's result, if there is one.

        Several threads call it, for several arrays: take ``stored.lock`` around what must be atomic.
        """
