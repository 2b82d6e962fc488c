"""Checks the ``shape`` argument of ``Variable``."""

from __future__ import annotations

from stratagem._src.core.errors import ShapeMismatchError, UnsupportedError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ShapeLike
from stratagem._src.variables.variable import Variable

__all__ = ["check_shape"]


def check_shape(variable: Variable, shape: ShapeLike) -> None:
    """Checks that a variable has the declared shape, if any.

    Raises:
        ShapeMismatchError: If it has another shape.
        UnsupportedError: If the declared shape is not fully defined.
    """
    if shape is None:
        return
    wanted = TensorShape(shape)
    if not wanted.is_fully_defined():
        raise UnsupportedError(
            f"The shape of a variable must be fully defined, because programs are compiled for it, got "
            f"shape={wanted} for {variable.name!r}. Give all dimensions, or leave shape= out."
        )
    if wanted != variable.shape:
        raise ShapeMismatchError(
            f"The initial value of {variable.name!r} must have the declared shape {wanted}, got "
            f"{variable.shape}."
        )
