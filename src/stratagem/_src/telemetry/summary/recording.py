"""``scalar``, ``image``, ``histogram``, ``text``: write one summary each, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, NotAnArrayError
from stratagem._src.core.types import ArrayLike
from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.telemetry.summary import recording_state, summaries
from stratagem._src.telemetry.summary.writer import SummaryWriter
from stratagem._src.values.distributed_values import DistributedValues
from stratagem._src.variables.variable import is_own_variable

__all__ = ["flush", "histogram", "image", "scalar", "text"]

_Maker: TypeAlias = Callable[[np.ndarray[Any, Any]], summaries.Summary]
"""Makes a summary of an array."""


def scalar(
    name: str, data: ArrayLike, step: ArrayLike = None, description: str | None = None
) -> Any:
    """Writes a scalar summary; monitoring shows it as well, like the metrics of ``sg.train.report``.

    In a compiled function the default writer at trace time is used, as in TensorFlow. Inside
    ``strategy.run`` only the first replica's value is written: reduce it first if all replicas count.

    Args:
        name: The name of the scalar.
        data: One number.
        step: The step; by default that of ``as_default`` or ``set_step``.
        description: Accepted for compatibility with TensorFlow.

    Returns:
        Whether the summary is written.

    >>> import tempfile
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.scalar("loss", 0.25, step=1)
    True
    """
    shape = np.shape(_plain(name, data))
    if shape != ():
        raise InvalidArgumentError(
            f"A scalar summary needs one number, got shape {shape} for {name!r}. Reduce it, or use "
            "sg.summary.histogram."
        )
    return _record(_scalar, name, data, step, is_metric=True)


def image(
    name: str,
    data: ArrayLike,
    step: ArrayLike = None,
    max_outputs: int = 3,
    description: str | None = None,
) -> Any:
    """Writes image summaries.

    Args:
        name: The name of the images; the second is ``name/1``.
        data: Shape ``[k, height, width, channels]``, with 1, 3 or 4 channels: floats from 0 to 1, or
            ``uint8``.
        step: As for ``scalar``.
        max_outputs: The maximum number of images to write.
        description: Accepted for compatibility with TensorFlow.

    Returns:
        Whether the images are written.

    >>> import tempfile
    >>> import numpy as np
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.image("noise", np.random.rand(2, 8, 8, 1), step=0)
    True
    """

    def make(images: np.ndarray[Any, Any]) -> summaries.Summary:
        images = np.array(images[:max_outputs])  # a tracker may encode it later
        if images.dtype != np.uint8:
            images = (np.clip(images, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
        if images.shape[-1] == 1:
            images = np.repeat(images, 3, -1)
        return summaries.Images(list(images))

    shape = np.shape(_plain(name, data))
    if len(shape) != 4 or shape[-1] not in (1, 3, 4):
        raise InvalidArgumentError(
            "Images must have shape [k, height, width, channels] with 1, 3 or 4 channels, got "
            f"{shape} for {name!r}. Pass a single image as data[None]."
        )
    return _record(make, name, data, step)


def histogram(
    name: str,
    data: ArrayLike,
    step: ArrayLike = None,
    buckets: int | None = None,
    description: str | None = None,
) -> Any:
    """Writes a histogram summary.

    Args:
        name: The name of the histogram.
        data: Numbers of any shape.
        step: As for ``scalar``.
        buckets: The number of buckets; default 30.
        description: Accepted for compatibility with TensorFlow.

    Returns:
        Whether the summary is written.

    >>> import tempfile
    >>> import numpy as np
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.histogram("weights", np.random.randn(100), step=0)
    True
    """

    def make(values: np.ndarray[Any, Any]) -> summaries.Summary:
        return summaries.Histogram(values.astype(np.float64), buckets or 30)

    return _record(make, name, data, step)


def text(name: str, data: str, step: ArrayLike = None, description: str | None = None) -> Any:
    """Writes a text summary, which TensorBoard renders as Markdown.

    Args:
        name: The name of the text.
        data: The text.
        step: As for ``scalar``.
        description: Accepted for compatibility with TensorFlow.

    Returns:
        Whether the summary is written.

    >>> import tempfile
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.text("notes", "**begun**", step=0)
    True
    """
    return _record(_text, name, np.asarray(data), step)


def flush(writer: SummaryWriter | None = None) -> None:
    """Flushes a writer, or this thread's default one.

    >>> import stratagem as sg
    >>> sg.summary.flush()
    """
    writer = writer or recording_state.current()[0]
    if writer is not None:
        writer.flush()


def _scalar(value: np.ndarray[Any, Any]) -> summaries.Summary:
    return summaries.Scalar(float(value))


def _text(value: np.ndarray[Any, Any]) -> summaries.Summary:
    return summaries.Text(str(value))


def _record(
    make: _Maker, name: str, data: ArrayLike, step: ArrayLike, *, is_metric: bool = False
) -> Any:
    writer, default_step, condition = recording_state.current()
    if writer is None:
        return False
    step = default_step if step is None else step
    if step is None:
        raise ValueError(
            f"The summary {name!r} has no step. Pass step=, or set one with as_default(step=…) or "
            "sg.summary.experimental.set_step."
        )
    replica: Any = context.get_replica_context()
    number = 0 if replica is None else replica.replica_id_in_sync_group
    parts = (number, condition, _plain(name, step), _plain(name, data))

    def write(number: ArrayLike, condition: ArrayLike, step: ArrayLike, value: ArrayLike) -> Any:
        if number != 0 or not condition or not writer.is_writing:
            return False
        writer.write(name, make(np.asarray(value)), int(step))
        current_recorder = recorder()
        if is_metric and current_recorder is not None:
            current_recorder.report({name: value})
        return True

    # The callback is traced in every worker, even where nothing is written: a multi-process program must
    # be the same everywhere.
    if any(map(is_tracer, parts)):
        jax.debug.callback(write, *parts)
        return condition
    return write(*parts)


def _plain(name: str, value: ArrayLike) -> Any:
    """Returns a value as an array or number.

    Raises:
        NotAnArrayError: If it is a per-replica value.
    """
    if is_own_variable(value):
        value = value.read_value()
    if isinstance(value, DistributedValues):
        raise NotAnArrayError(
            f"A summary needs one value, got one for each replica for {name!r}. Reduce them first with "
            "strategy.reduce."
        )
    return value
