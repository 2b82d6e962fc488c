"""Argument checks that many transformations share."""

from __future__ import annotations

import operator
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.options import AUTOTUNE

__all__ = ["as_integer", "as_name", "at_least", "parallelism"]


def as_integer(name: str, value: Any) -> int:
    """Returns ``value`` as an int.

    Raises:
        InvalidArgumentError: If it is not an integer.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} must be an integer, got {value!r}.") from None


def as_name(name: Any) -> str | None:
    """Returns the name of a dataset, or ``None`` for none.

    Raises:
        InvalidArgumentError: If it is not an identifier.
    """
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise InvalidArgumentError(
            f"name must be an identifier (letters, digits and underscores), got {name!r}."
        )
    return name


def at_least(minimum: int, name: str, value: Any) -> int:
    """Returns ``value`` as an int that is at least ``minimum``.

    Raises:
        InvalidArgumentError: If it is not.
    """
    number = as_integer(name, value)
    if number < minimum:
        raise InvalidArgumentError(f"{name} must be at least {minimum}, got {number}.")
    return number


def parallelism(name: str, value: Any) -> int | None:
    """Returns a degree of parallelism: ``None``, ``AUTOTUNE`` or a positive int.

    Raises:
        InvalidArgumentError: If it is none of these.
    """
    if value is None:
        return None
    number = as_integer(name, value)
    if number != AUTOTUNE and number < 1:
        raise InvalidArgumentError(f"{name} must be None, AUTOTUNE or at least 1, got {number}.")
    return number
