"""``Trace``: a name for what a block of a program does, in a profile."""

from __future__ import annotations

from typing import Any, Self

import jax

__all__ = ["Trace"]


class Trace:
    """Names a block in the profile, as ``tf.profiler.experimental.Trace``; nothing if none is recorded.

    >>> import stratagem as sg
    >>> for step in range(3):
    ...     with sg.profiler.Trace("train", step_num=step):
    ...         pass

    Args:
        name: What the block does.
        **kwargs: More about it. With ``step_num`` the block is a step to TensorBoard.

    JAX equivalent: ``jax.profiler.TraceAnnotation``, ``jax.profiler.StepTraceAnnotation``.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        as_step = {"_r": 1} if "step_num" in kwargs else {}
        self._annotation = jax.profiler.TraceAnnotation(
            name, **{"kind": "trace", **as_step, **kwargs}
        )

    def set_metadata(self, **kwargs: Any) -> None:
        """Says more about the block, within it."""
        self._annotation.set_metadata(**kwargs)

    def __enter__(self) -> Self:
        self._annotation.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._annotation.__exit__(*error)
