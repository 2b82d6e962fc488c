"""``GradientTaps``: gradients of values that are fetched while a function is differentiated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable

__all__ = ["GradientTaps"]


@dataclass(slots=True)
class _Tap:
    """One read of a remote variable: some rows, or the full value if there are no indices."""

    variable: BaseRemoteVariable
    value: Tensor
    indices: Any = None
    cotangent: Any = None

    def gradient(self) -> Any:
        return jnp.zeros_like(self.value) if self.cotangent is None else self.cotangent


class GradientTaps:
    """Records the gradients of values that are not arguments of the differentiated function.

    Which rows a function reads is known only while it runs, too late to make them arguments. So they
    pass through an identity function whose derivative records the incoming cotangent. JAX computes the
    derivative only if the function depends on an argument: that is the anchor, a dummy scalar.
    """

    def __init__(self) -> None:
        self._anchor: Any = None
        self._taps: list[_Tap] = []
        self._read_in_full: set[int] = set()

    def open(self, anchor: Tensor) -> None:
        """Sets the anchor, a scalar that the function is differentiated with respect to."""
        self._anchor = anchor

    def note_full_read(self, variable: BaseRemoteVariable) -> None:
        """Notes that the full variable is read, as an argument of the differentiated function."""
        self._read_in_full.add(id(variable))

    def full_value(self, variable: BaseRemoteVariable, value: Tensor) -> Any:
        """Returns the full value of the variable, and records its gradient."""
        self.note_full_read(variable)
        return self._tapped(_Tap(variable, value))

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike, value: Tensor) -> Any:
        """Returns rows of the variable, and records their gradient."""
        return self._tapped(_Tap(variable, value, indices))

    def _tapped(self, tap: _Tap) -> Any:
        @jax.custom_vjp
        def identity(anchor: Tensor, value: Tensor) -> Any:
            return value

        def backward(_: None, cotangent: Tensor) -> tuple[Any, Any]:
            # JAX calls this while it transposes, after the forward trace. If the loss does not depend on
            # the read, it is never called, and the gradient is zero.
            tap.cotangent = cotangent
            # The cotangent ends here. What was fetched is not computed by this program.
            return jnp.zeros_like(self._anchor), jnp.zeros_like(cotangent)

        identity.defvjp(lambda anchor, value: (value, None), backward)
        self._taps.append(tap)
        return identity(self._anchor, tap.value)

    def gradient(self, variable: BaseRemoteVariable, of_argument: Tensor) -> Any:
        """Returns the gradient with respect to ``variable``.

        Args:
            variable: The variable.
            of_argument: The gradient with respect to its value as an argument; ``None`` if it was not one.

        Returns:
            ``IndexedSlices`` if only rows were read, else an array.
        """
        taps = [tap for tap in self._taps if tap.variable is variable]
        by_rows = [tap for tap in taps if tap.indices is not None]
        if by_rows and id(variable) not in self._read_in_full:
            return _slices(variable, by_rows)
        full = (tap.gradient() for tap in taps if tap.indices is None)
        dense = next(full, of_argument)
        if dense is None:
            return jnp.zeros(variable.program_shape, variable.dtype)
        return dense + _slices(variable, by_rows).to_dense() if by_rows else dense


def _slices(variable: BaseRemoteVariable, taps: Iterable[_Tap]) -> IndexedSlices:
    row_shape = variable.row_shape
    pairs = [
        (tap.gradient().reshape((-1, *row_shape)), jnp.reshape(tap.indices, -1)) for tap in taps
    ]
    if len(pairs) == 1:
        return IndexedSlices(*pairs[0], dense_shape=variable.program_shape)
    # A row that was read twice is in the slices twice. The update on the server adds them.
    values, indices = zip(*pairs, strict=True)
    return IndexedSlices(
        jnp.concatenate(values), jnp.concatenate(indices), dense_shape=variable.program_shape
    )
