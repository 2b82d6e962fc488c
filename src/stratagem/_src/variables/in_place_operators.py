"""``InPlaceOperators``: makes ``+=`` and similar operators on variables raise."""

from __future__ import annotations

from typing import NoReturn

from stratagem._src.core.errors import ContextError, VariableError
from stratagem._src.core.types import ArrayLike
from stratagem._src.variables.variable_attributes import VariableAttributes

__all__ = ["InPlaceOperators"]


class InPlaceOperators(VariableAttributes):
    """Mixin: rejects in-place operators at run time and, by ``NoReturn``, in type checkers."""

    __slots__ = ()

    def _refuse_in_place(self) -> NoReturn:
        raise ContextError(
            f"An operator such as `+=` would rebind the Python name of variable {self.name!r} to an array. "
            "Use assign_add() or assign_sub() to change the variable, or `x = variable + value`."
        )

    def __setitem__(self, key: ArrayLike, value: ArrayLike) -> NoReturn:
        raise VariableError(
            f"The elements of variable {self.name!r} cannot be assigned in place: a "
            f"{type(self).__name__} object does not support item assignment. Use "
            "v.assign(v.value().at[key].set(value))."
        )

    def __iadd__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __isub__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __imul__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __itruediv__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __ifloordiv__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __imod__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __ipow__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __imatmul__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __iand__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __ior__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()

    def __ixor__(self, other: ArrayLike) -> NoReturn:
        self._refuse_in_place()
