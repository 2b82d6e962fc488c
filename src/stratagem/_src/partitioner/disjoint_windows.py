"""Gradients of max pooling with non-overlapping windows, as comparisons.

XLA's CPU compiler carries the index of each element through the window search, one number for each
dimension, and scatters by these indices. For images that can take half the time of a step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["are_disjoint", "scatter_to_chosen"]

_MAX_WINDOW_ELEMENTS = 16
"""The maximum size of a window: each of its elements becomes an operation."""


def are_disjoint(params: Mapping[str, Any]) -> bool:
    """Returns whether the windows of a ``select_and_scatter_add`` do not overlap and are small."""
    window = tuple(params["window_dimensions"])
    return (
        tuple(params["window_strides"]) == window
        and not any(map(any, params["padding"]))
        and math.prod(window) <= _MAX_WINDOW_ELEMENTS
    )


def scatter_to_chosen(
    params: Mapping[str, Any], source: jax.Array, operand: jax.Array
) -> jax.Array:
    """Returns zeros like the operand, with each source element at the selected element of its window.

    Args:
        params: The parameters of ``select_and_scatter_add``; the windows are disjoint.
        source: An element for each window.
        operand: The elements to select from; the first of equal ones is selected.
    """
    window, prefers = params["window_dimensions"], params["select_prim"]
    ends = [count * length for count, length in zip(source.shape, window, strict=True)]
    offsets = list(itertools.product(*map(range, window)))
    candidates = [jax.lax.slice(operand, offset, ends, window) for offset in offsets]
    chosen, place = candidates[0], jnp.zeros(source.shape, jnp.int32)
    for number, candidate in enumerate(candidates[1:], start=1):
        stays = prefers.bind(chosen, candidate)
        chosen = jnp.where(stays, chosen, candidate)
        place = jnp.where(stays, place, number)

    zero = jnp.zeros((), source.dtype)
    scattered = jnp.zeros_like(operand, source.dtype)
    for number, offset in enumerate(offsets):
        own = jnp.where(place == number, source, zero)
        dims = zip(offset, source.shape, window, operand.shape, strict=True)
        scattered += jax.lax.pad(own, zero, list(itertools.starmap(_padding, dims)))
    return scattered


def _padding(offset: int, count: int, length: int, full: int) -> tuple[int, int, int]:
    """Returns the low, high and interior padding of ``jax.lax.pad`` for one element of each window."""
    extent = max(0, (count - 1) * length + 1)
    return offset, full - offset - extent, length - 1
