"""``TensorShape``: a shape that is also a plain tuple."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

__all__ = ["TensorShape"]


class TensorShape(tuple[int | None, ...]):
    """The shape of an array, where ``None`` means an unknown dimension.

    It is a tuple, so JAX and NumPy accept it as a shape. ``TensorShape(None)`` is a shape of unknown rank.

    >>> shape = TensorShape([10, 3])
    >>> shape.as_list(), shape.rank, shape.num_elements()
    ([10, 3], 2, 30)
    >>> shape == (10, 3)
    True
    >>> TensorShape([None, 3]).is_compatible_with([7, 3])
    True
    """

    _rank_known: bool

    def __new__(cls, dims: Iterable[int | None] | int | None = ()) -> Self:
        """Returns the shape of these dimensions."""
        known = dims is not None
        if dims is None:
            dims = ()
        elif isinstance(dims, TensorShape):
            known = dims._rank_known
        elif isinstance(dims, int):
            dims = (dims,)
        sizes = tuple(_size(dim) for dim in dims)
        self = super().__new__(cls, sizes)
        self._rank_known = known
        return self

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or ``None`` if not known."""
        return len(self) if self._rank_known else None

    @property
    def ndims(self) -> int | None:
        """Same as ``rank``."""
        return self.rank

    @property
    def dims(self) -> list[int | None] | None:
        """The dimensions as a list, or ``None`` if the rank is not known."""
        return list(self) if self._rank_known else None

    def as_list(self) -> list[int | None]:
        """Returns the dimensions as a list.

        Raises:
            ValueError: If the rank is not known.
        """
        if not self._rank_known:
            raise ValueError("as_list() needs a known rank, got TensorShape(None).")
        return list(self)

    def is_fully_defined(self) -> bool:
        """Returns whether the rank and every dimension are known."""
        return self._rank_known and all(dim is not None for dim in self)

    def num_elements(self) -> int | None:
        """Returns the number of elements, or ``None`` if it is not known."""
        if not self._rank_known:
            return None
        count = 1
        for dim in self:
            if dim is None:
                return None
            count *= dim
        return count

    def is_compatible_with(self, other: Iterable[int | None] | None) -> bool:
        """Returns whether some fully defined shape matches both."""
        that = TensorShape(other)
        if not (self._rank_known and that._rank_known):
            return True
        return len(self) == len(that) and all(
            a is None or b is None or a == b for a, b in zip(self, that, strict=True)
        )

    def concatenate(self, other: Iterable[int | None] | None) -> TensorShape:
        """Returns this shape followed by the dimensions of ``other``."""
        that = TensorShape(other)
        if not (self._rank_known and that._rank_known):
            return TensorShape(None)
        return TensorShape((*self, *that))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TensorShape) and self._rank_known != other._rank_known:
            return False
        if isinstance(other, list):
            other = tuple(other)
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    def __repr__(self) -> str:
        return f"TensorShape({list(self) if self._rank_known else None})"

    def __str__(self) -> str:
        if not self._rank_known:
            return "<unknown>"
        return f"({', '.join(str(dim) for dim in self)}{',' if len(self) == 1 else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorShape, (list(self) if self._rank_known else None,)


def _size(dim: Any) -> int | None:
    if dim is None:
        return None
    size = int(dim)
    if size < 0 or size != dim:
        raise ValueError(f"A dimension must be an integer >= 0 or None, got {dim!r}.")
    return size
