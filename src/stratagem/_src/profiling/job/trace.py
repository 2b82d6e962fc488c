"""``Trace``: a named span in a profile."""

from __future__ import annotations

from typing import Any, Self

import jax

from stratagem._src.core.types import StaticValue

__all__ = ["Trace"]


class Trace:
    """Records a block as a span in the profile, like ``tf.profiler.experimental.Trace``.

    Does nothing if no profile is running.

    >>> import stratagem as sg
    >>> for step in range(3):
    ...     with sg.profiler.Trace("train", step_num=step):
    ...         pass

    Args:
        name: The name of the span.
        **kwargs: Attributes of the span. With ``step_num`` TensorBoard shows the block as a step.

    JAX equivalent: ``jax.profiler.TraceAnnotation``, ``jax.profiler.StepTraceAnnotation``.
    """

    def __init__(self, name: str, **kwargs: StaticValue) -> None:
        as_step = {"_r": 1} if "step_num" in kwargs else {}
        self._annotation = jax.profiler.TraceAnnotation(
            name, **{"kind": "trace", **as_step, **kwargs}
        )

    def set_metadata(self, **kwargs: StaticValue) -> None:
        """Adds attributes to the span, inside the block."""
        self._annotation.set_metadata(**kwargs)

    def __enter__(self) -> Self:
        self._annotation.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._annotation.__exit__(*error)
