"""Objects of other libraries that stand for variables of ours, or hold such, and their variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.variables.variable import Variable

__all__ = [
    "NotBuiltError",
    "held_variables",
    "is_variable",
    "register_holder",
    "register_stand_in",
    "variable_of",
    "when_built",
]


class NotBuiltError(InvalidArgumentError):
    """The variables of an object were asked for before it has all of them."""


_kinds: dict[type, Callable[[Any], Variable]] = {}
_Find = Callable[[Any], Mapping[str, Variable]]
_Defer = Callable[[Any, Callable[[Any], None]], None]
_holders: dict[type, tuple[_Find, _Defer | None]] = {}


def register_stand_in(kind: type, find: Callable[[Any], Variable]) -> None:
    """Lets objects of a type, or of types derived from it, be given in place of variables.

    Args:
        kind: The type.
        find: From such an object to the variable that holds its value.
    """
    _kinds[kind] = find


def is_variable(value: Any) -> bool:
    """Returns whether ``value`` is a variable, or stands for one."""
    return isinstance(value, (Variable, *_kinds))


def variable_of(value: Any) -> Any:
    """Returns the variable that ``value`` stands for; anything else as it is."""
    for kind, find in _kinds.items():
        if isinstance(value, kind):
            return find(value)
    return value


def register_holder(kind: type, find: _Find, defer: _Defer | None = None) -> None:
    """Lets objects of a type, or of types derived from it, be saved in checkpoints.

    Args:
        kind: The type.
        find: From such an object to the variables that hold its state, by names that do not change. It
            raises ``NotBuiltError`` where some are still to come.
        defer: Has a function called with such an object once it has all of them, and before they are used;
            for kinds that raise ``NotBuiltError``.
    """
    _holders[kind] = find, defer


def held_variables(value: Any) -> Mapping[str, Variable] | None:
    """Returns the variables of an object that holds some; of anything else ``None``.

    Raises:
        NotBuiltError: If it has not got all of them yet.
    """
    for kind, (find, _) in _holders.items():
        if isinstance(value, kind):
            return find(value)
    return None


def when_built(value: Any, call: Callable[[Any], None]) -> None:
    """Has ``call`` called with an object that raised ``NotBuiltError`` when it has its variables."""
    for kind, (_, defer) in _holders.items():
        if defer is not None and isinstance(value, kind):
            defer(value, call)
            return
