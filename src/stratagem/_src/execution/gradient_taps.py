"""Gradients with respect to what is fetched while a function is being differentiated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable

__all__ = ["GradientTaps"]


@dataclass(slots=True)
class _Tap:
    """Something that was read: the whole value if it has no indices."""

    variable: RemotelyHeldVariable
    value: Any
    indices: Any = None
    cotangent: Any = None

    def gradient(self) -> Any:
        return jnp.zeros_like(self.value) if self.cotangent is None else self.cotangent


class GradientTaps:
    """Catches the gradients of values that are not arguments of the differentiated function.

    Which rows a function reads shows only while it runs, too late to make them arguments. So they
    pass through a function whose derivative notes the gradient that arrives, and the anchor, a number
    that is an argument, makes JAX compute it.
    """

    def __init__(self) -> None:
        self._anchor: Any = None
        self._taps: list[_Tap] = []
        self._read_whole: set[int] = set()

    def open(self, anchor: Any) -> None:
        """Takes the anchor, a scalar that the function is differentiated with respect to."""
        self._anchor = anchor

    def note_whole(self, variable: RemotelyHeldVariable) -> None:
        """Notes that the whole variable is read, as an argument of the differentiated function."""
        self._read_whole.add(id(variable))

    def whole(self, variable: RemotelyHeldVariable, value: Any) -> Any:
        """Returns the variable's value, whose gradient will be caught."""
        self.note_whole(variable)
        return self._through(_Tap(variable, value))

    def rows(self, variable: RemotelyHeldVariable, indices: Any, value: Any) -> Any:
        """Returns rows of the variable, whose gradient will be caught."""
        return self._through(_Tap(variable, value, indices))

    def _through(self, tap: _Tap) -> Any:
        @jax.custom_vjp
        def through(anchor: Any, value: Any) -> Any:
            return value

        def backward(_: None, cotangent: Any) -> tuple[Any, Any]:
            tap.cotangent = cotangent
            return jnp.zeros_like(self._anchor), jnp.zeros_like(cotangent)

        through.defvjp(lambda anchor, value: (value, None), backward)
        self._taps.append(tap)
        return through(self._anchor, tap.value)

    def gradient(self, variable: RemotelyHeldVariable, of_argument: Any) -> Any:
        """Returns the gradient with respect to ``variable``.

        Args:
            variable: The variable.
            of_argument: The gradient with respect to its value as an argument; ``None`` if it was none.

        Returns:
            ``IndexedSlices`` if only rows were read, else an array.
        """
        taps = [tap for tap in self._taps if tap.variable is variable]
        by_rows = [tap for tap in taps if tap.indices is not None]
        if by_rows and id(variable) not in self._read_whole:
            return _slices(variable, by_rows)
        whole = (tap.gradient() for tap in taps if tap.indices is None)
        dense = next(whole, of_argument)
        if dense is None:
            return jnp.zeros(variable.program_shape, variable.dtype)
        return dense + _slices(variable, by_rows).to_dense() if by_rows else dense


def _slices(variable: RemotelyHeldVariable, taps: Iterable[_Tap]) -> IndexedSlices:
    row_shape = variable.row_shape
    pairs = [
        (tap.gradient().reshape((-1, *row_shape)), jnp.reshape(tap.indices, -1)) for tap in taps
    ]
    if len(pairs) == 1:
        return IndexedSlices(*pairs[0], dense_shape=variable.program_shape)
    values, indices = zip(*pairs, strict=True)
    return IndexedSlices(
        jnp.concatenate(values), jnp.concatenate(indices), dense_shape=variable.program_shape
    )
