"""``report``: figures of a training loop for whoever observes the job."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.values.mirrored import Mirrored

__all__ = ["report"]


def report(**values: Any) -> None:
    """Shows figures, such as the loss, to whoever observes the job; nothing if nobody does.

    ``stratagem run --events`` and ``--dashboard`` show the newest of each name once a second. An array need
    not have been computed: the step is not waited for.

    Args:
        **values: Numbers, or arrays of one element. What differs between replicas is to be reduced first.

    Raises:
        InvalidArgumentError: If one is something else.

    >>> import stratagem as sg
    >>> sg.train.report(loss=0.25, accuracy=0.9)
    """
    for name, value in values.items():
        if isinstance(value, Mirrored):
            value = values[name] = value.values[0]
        if not _is_number(value):
            raise InvalidArgumentError(
                f"A reported figure must be a number or an array of one element, got {name}="
                f"{type(value).__name__}. Reduce it first: strategy.reduce('MEAN', value, axis=None)."
            )
    observer = recorder()
    if observer is not None:
        observer.report(values)


def _is_number(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    if shape is None:
        return isinstance(value, (bool, int, float))
    return (not shape or set(shape) == {1}) and _is_real(value.dtype)


@functools.cache
def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
