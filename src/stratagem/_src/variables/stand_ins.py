"""Objects of other libraries that stand for variables of ours, or hold such, and their variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stratagem._src.variables.variable import Variable

__all__ = ["held_variables", "is_variable", "register_holder", "register_stand_in", "variable_of"]

_kinds: dict[type, Callable[[Any], Variable]] = {}
_holders: dict[type, Callable[[Any], Mapping[str, Variable]]] = {}


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


def register_holder(kind: type, find: Callable[[Any], Mapping[str, Variable]]) -> None:
    """Lets objects of a type, or of types derived from it, be saved in checkpoints.

    Args:
        kind: The type.
        find: From such an object to the variables that hold its state, by names that do not change.
    """
    _holders[kind] = find


def held_variables(value: Any) -> Mapping[str, Variable] | None:
    """Returns the variables of an object that holds some; of anything else ``None``."""
    for kind, find in _holders.items():
        if isinstance(value, kind):
            return find(value)
    return None
