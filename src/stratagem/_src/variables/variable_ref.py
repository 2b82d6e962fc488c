"""``VariableRef``: a variable as the key of a dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratagem._src.variables.variable import Variable

__all__ = ["VariableRef"]


class VariableRef:
    """A hashable reference to a variable.

    >>> import stratagem as sg
    >>> v = sg.Variable(1.0)
    >>> {v.ref(): "weights"}[v.ref()]
    'weights'
    """

    __slots__ = ("_variable",)

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def deref(self) -> Variable:
        """Returns the variable."""
        return self._variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableRef) and other._variable is self._variable

    def __hash__(self) -> int:
        return id(self._variable)
