"""The update methods of a variable, with TensorFlow's arguments."""

from __future__ import annotations

from typing import Self

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike
from stratagem._src.variables import updates
from stratagem._src.variables.updates import Update

__all__ = ["UpdateMethods"]


class UpdateMethods:
    """Mixin: every method is an ``Update`` for ``_update``.

    ``use_locking`` and ``name`` are ignored: updates are always atomic, and there are no graphs.
    """

    __slots__ = ()

    def _update(self, update: Update, operand: ArrayLike) -> Self:
        raise NotImplementedError

    def assign(
        self,
        value: ArrayLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Self | None:
        """Sets the value and returns the variable.

        Args:
            value: Array of the variable's shape.
            use_locking: Ignored.
            name: Ignored.
            read_value: Whether to return the variable; otherwise ``None``.
        """
        made = self._update(updates.ASSIGN, value)
        return made if read_value else None

    def assign_add(
        self,
        delta: ArrayLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Self | None:
        """Adds ``delta`` and returns the variable, as ``assign`` does."""
        made = self._update(updates.ASSIGN_ADD, delta)
        return made if read_value else None

    def assign_sub(
        self,
        delta: ArrayLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Self | None:
        """Subtracts ``delta`` and returns the variable, as ``assign`` does."""
        made = self._update(updates.ASSIGN_SUB, delta)
        return made if read_value else None

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Adds rows, all of them where an index repeats, and returns the variable."""
        return self._update(updates.SCATTER_ADD, sparse_delta)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Subtracts rows and returns the variable."""
        return self._update(updates.SCATTER_SUB, sparse_delta)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Multiplies rows, by all factors where an index repeats, and returns the variable."""
        return self._update(updates.SCATTER_MUL, sparse_delta)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Divides rows, by all divisors where an index repeats, and returns the variable."""
        return self._update(updates.SCATTER_DIV, sparse_delta)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Takes the smaller of each row's old and new elements and returns the variable."""
        return self._update(updates.SCATTER_MIN, sparse_delta)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Takes the larger of each row's old and new elements and returns the variable."""
        return self._update(updates.SCATTER_MAX, sparse_delta)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Sets rows and returns the variable."""
        return self._update(updates.SCATTER_UPDATE, sparse_delta)
