"""The shape that is asked for when a variable is created."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.errors import ShapeMismatchError, UnsupportedError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.variables.variable import Variable

__all__ = ["check_shape"]


def check_shape(variable: Variable, shape: Any) -> None:
    """Checks that a variable was made with the shape that was asked for, if any.

    Raises:
        VariableError: If not, or if that shape leaves something open.
    """
    if shape is None:
        return
    wanted = TensorShape(shape)
    if not wanted.is_fully_defined():
        raise UnsupportedError(
            f"The shape of a variable is fixed, because programs are compiled for it, got shape={wanted} "
            f"for {variable.name!r}. Give all dimensions, or leave shape= out."
        )
    if wanted != variable.shape:
        raise ShapeMismatchError(
            f"The initial value of {variable.name!r} must have the shape that is given, {wanted}, got "
            f"{variable.shape}."
        )
