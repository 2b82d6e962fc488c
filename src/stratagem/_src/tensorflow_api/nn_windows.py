"""Strides, sizes and padding of convolution and pooling, for each spatial dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
)
from stratagem._src.tensorflow_api.conversion import (
    integers,
)

__all__ = ["LAYOUTS", "spatial_padding", "spatial_sizes"]


LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def spatial_sizes(
    op: str, argument: str, value: ArrayLike, count: int, layout: str
) -> tuple[int, ...]:
    """Returns one number for each of ``count`` spatial dimensions of ``layout``, such as ``"NHWC"``."""
    given = integers(op, argument, value)
    if len(given) == 1:
        return given * count
    if len(given) == count:
        return given
    if len(given) != count + 2:
        raise ValueError(
            f"{argument} of tf.{op} must have 1, {count} or {count + 2} numbers, got {value}."
        )
    channels = layout.index("C")
    if given[0] != 1 or given[channels] != 1:
        raise InvalidArgumentError(
            f"{argument} of tf.{op} must be 1 for batch and channels, got {value}."
        )
    return tuple(n for place, n in enumerate(given) if place not in (0, channels))


def spatial_padding(
    op: str, padding: str | Sequence[Sequence[int]], count: int, layout: str
) -> Any:
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ValueError(
                f"padding of tf.{op} must be 'SAME', 'VALID' or a list, got {padding!r}."
            )
        return padding.upper()
    pairs = [integers(op, "padding", pair) for pair in padding]
    if len(pairs) == count + 2:
        pairs = [pair for place, pair in enumerate(pairs) if place not in (0, layout.index("C"))]
    return pairs
