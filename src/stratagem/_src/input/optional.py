"""``Optional``: a value that may be missing, as iterators return at the end of the data."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.errors import OutOfRangeError

__all__ = ["MISSING", "Optional"]

MISSING = object()
"""The sentinel that an empty ``Optional`` holds."""


class Optional:
    """The next element of an iterator, or nothing.

    >>> Optional.empty().has_value()
    False
    >>> Optional(3).get_value()
    3
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    @classmethod
    def empty(cls) -> Optional:
        """Returns an optional without a value."""
        return cls(MISSING)

    def has_value(self) -> bool:
        """Returns whether there is a value."""
        return self._value is not MISSING

    def get_value(self) -> Any:
        """Returns the value.

        Raises:
            OutOfRangeError: If there is none.
        """
        if self._value is MISSING:
            raise OutOfRangeError("The iterator has no further element. Check has_value() first.")
        return self._value
