"""The kinds of updates of a variable: what each computes from the old value and its operand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike

__all__ = [
    "ASSIGN",
    "ASSIGN_ADD",
    "ASSIGN_SUB",
    "SCATTER_ADD",
    "SCATTER_DIV",
    "SCATTER_MAX",
    "SCATTER_MIN",
    "SCATTER_MUL",
    "SCATTER_SUB",
    "SCATTER_UPDATE",
    "Update",
    "update_on_server",
]


@dataclass(frozen=True, slots=True)
class Update:
    """One kind of update.

    Attributes:
        name: The method's name.
        apply: Computes the new value from the old value and the operand.
        sparse: Whether the operand is an ``IndexedSlices``.
        reducible: Whether the operands of several replicas can be summed or averaged first.
        body: The serialized update, if only a parameter server can apply it; else empty.
    """

    name: str
    apply: Callable[[Any, Any], Any]
    sparse: bool = False
    reducible: bool = True
    body: bytes = b""

    @property
    def server_only(self) -> bool:
        """Whether only a parameter server can compute the new value."""
        return bool(self.body)


def update_on_server(name: str, body: bytes) -> Update:
    """Returns an update that only a parameter server can apply, such as an optimizer step with state there.

    Its operand is any structure of arrays.
    """

    def apply(old: ArrayLike, operand: ArrayLike) -> Any:
        raise AssertionError(f"{name} is applied on the server")

    return Update(name, apply, body=body)


def _scatter(name: str, method: str, *, reducible: bool = True) -> Update:
    def apply(old: ArrayLike, slices: IndexedSlices) -> Any:
        old = jnp.asarray(old)
        rows = old.at[jnp.asarray(slices.indices)]
        # Negative indices are out of range: they do not count from the end.
        new = getattr(rows, method)(slices.values, mode="drop", wrap_negative_indices=False)
        return new.astype(old.dtype)  # dividing integers gives floating point

    return Update(name, apply, sparse=True, reducible=reducible)


ASSIGN = Update("assign", lambda old, new: new)
ASSIGN_ADD = Update("assign_add", lambda old, delta: old + delta)
ASSIGN_SUB = Update("assign_sub", lambda old, delta: old - delta)
SCATTER_ADD = _scatter("scatter_add", "add")
SCATTER_SUB = _scatter("scatter_sub", "subtract")
SCATTER_MUL = _scatter("scatter_mul", "multiply")
SCATTER_DIV = _scatter("scatter_div", "divide")
SCATTER_MIN = _scatter("scatter_min", "min", reducible=False)
SCATTER_MAX = _scatter("scatter_max", "max", reducible=False)
SCATTER_UPDATE = _scatter("scatter_update", "set", reducible=False)
