"""``report``: publishes metrics of a training loop to the monitoring of the job."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.values.mirrored import Mirrored

__all__ = ["report"]


def report(**values: ArrayLike) -> None:
    """Publishes metrics, such as the loss, to the monitoring of the job; a no-op if there is none.

    ``stratagem run --events`` and ``--dashboard`` show the latest value of each name once a second. Arrays
    may still be computing: ``report`` does not wait for the step.

    Args:
        **values: Numbers, or arrays of one element. Reduce per-replica values first.

    Raises:
        InvalidArgumentError: If a value is something else.

    >>> import stratagem as sg
    >>> sg.train.report(loss=0.25, accuracy=0.9)
    """
    for name, value in values.items():
        if isinstance(value, Mirrored):
            value = values[name] = value.values[0]
        if not _is_number(value):
            raise InvalidArgumentError(
                f"A reported metric must be a number or an array of one element, got {name}="
                f"{type(value).__name__}. Reduce it first: strategy.reduce('MEAN', value, axis=None)."
            )
    observer = recorder()
    if observer is not None:
        observer.report(values)


def _is_number(value: ArrayLike) -> bool:
    shape = getattr(value, "shape", None)
    if shape is None:
        return isinstance(value, (bool, int, float))
    return (not shape or set(shape) == {1}) and _is_real(value.dtype)


@functools.cache
def _is_real(dtype: DTypeLike) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
