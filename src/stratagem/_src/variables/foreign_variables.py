"""Registry of other libraries' objects that wrap variables, or track several of them for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Leaf
from stratagem._src.variables.variable import Variable

__all__ = [
    "NotBuiltError",
    "existing_variables",
    "is_variable",
    "register_trackable",
    "register_variable_wrapper",
    "trackable_variables",
    "variable_of",
    "when_built",
]


class NotBuiltError(InvalidArgumentError):
    """An object's variables were requested before it has created all of them."""


_wrappers: dict[type, Callable[[Any], Variable]] = {}
_Find = Callable[[Any], Mapping[str, Variable]]
_Defer = Callable[[Any, Callable[[Any], None]], None]
_trackables: dict[type, tuple[_Find, _Defer | None, _Find | None]] = {}


def register_variable_wrapper(kind: type, find: Callable[[Any], Variable]) -> None:
    """Accepts instances of a type wherever a variable is accepted.

    Args:
        kind: The type.
        find: Returns the variable that holds such an object's value.
    """
    _wrappers[kind] = find


def is_variable(value: Leaf) -> bool:
    """Returns whether ``value`` is a variable, or wraps one."""
    return isinstance(value, (Variable, *_wrappers))


def variable_of(value: Leaf) -> Any:
    """Returns the variable that ``value`` wraps; anything else unchanged."""
    for kind, find in _wrappers.items():
        if isinstance(value, kind):
            return find(value)
    return value


def register_trackable(
    kind: type, find: _Find, defer: _Defer | None = None, existing: _Find | None = None
) -> None:
    """Lets checkpoints save instances of a type.

    Args:
        kind: The type.
        find: Returns the variables that hold such an object's state, by stable names. It raises
            ``NotBuiltError`` if the object has not created all of them yet.
        defer: Calls a function with such an object once it has all of its variables, and before they are
            used. For types that raise ``NotBuiltError``.
        existing: Returns those variables of such an object that exist already and whose names are certain.
    """
    _trackables[kind] = find, defer, existing


def trackable_variables(value: Leaf) -> Mapping[str, Variable] | None:
    """Returns the variables of a registered trackable object; ``None`` for anything else.

    Raises:
        NotBuiltError: If it has not created all of them yet.
    """
    for kind, (find, _, _) in _trackables.items():
        if isinstance(value, kind):
            return find(value)
    return None


def existing_variables(value: Leaf) -> Mapping[str, Variable]:
    """Returns the variables of an object that raised ``NotBuiltError`` which it has created already."""
    for kind, (_, _, existing) in _trackables.items():
        if existing is not None and isinstance(value, kind):
            return existing(value)
    return {}


def when_built(value: Leaf, call: Callable[[Any], None]) -> None:
    """Calls ``call`` with an object that raised ``NotBuiltError``, once it has created its variables."""
    for kind, (_, defer, _) in _trackables.items():
        if defer is not None and isinstance(value, kind):
            defer(value, call)
            return
