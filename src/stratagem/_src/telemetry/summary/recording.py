"""``scalar``, ``image``, ``histogram``, ``text``: one summary each, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.telemetry.summary import recording_state
from stratagem._src.telemetry.summary.writer import SummaryWriter
from stratagem._src.values.distributed_values import DistributedValues
from stratagem._src.variables.variable import Variable

__all__ = ["flush", "histogram", "image", "scalar", "text"]

# Makes a summary of an array, with the library that writes it.
_Maker = Callable[[Any, np.ndarray[Any, Any]], Any]


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> Any:
    """Records a number; whoever observes the job sees it, too, as those of ``sg.train.report``.

    In a compiled function the writer is the default one when the function is traced, as in TensorFlow.
    Inside ``strategy.run`` the first replica's number is recorded: reduce it first where all count.

    Args:
        name: What the curve is called.
        data: One number.
        step: Where it is on the curve; default the one of ``as_default`` or ``set_step``.
        description: Taken for TensorFlow's sake.

    Returns:
        Whether it is recorded.

    >>> import tempfile
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.scalar("loss", 0.25, step=1)
    True
    """

    def make(library: Any, value: np.ndarray[Any, Any]) -> Any:
        return library.summary.scalar("", float(value))

    shape = np.shape(_plain(name, data))
    if shape != ():
        raise ValueError(
            f"A scalar summary takes one number, got shape {shape} for {name!r}. Reduce it, or use "
            "sg.summary.histogram."
        )
    return _record(make, name, data, step, is_figure=True)


def image(
    name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None
) -> Any:
    """Records pictures.

    Args:
        name: What they are called; the second is ``name/1``.
        data: Shape ``[k, height, width, channels]``, with 1, 3 or 4 channels: floats from 0 to 1, or
            ``uint8``.
        step: As for ``scalar``.
        max_outputs: How many of the first are recorded.
        description: Taken for TensorFlow's sake.

    Returns:
        Whether they are recorded.

    >>> import tempfile
    >>> import numpy as np
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.image("noise", np.random.rand(2, 8, 8, 1), step=0)
    True
    """

    def make(library: Any, pictures: np.ndarray[Any, Any]) -> Any:
        values = []
        for picture in pictures[:max_outputs]:
            if picture.dtype != np.uint8:
                picture = (np.clip(picture, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
            if picture.shape[-1] == 1:
                picture = np.repeat(picture, 3, -1)
            values.extend(library.summary.image("", picture, dataformats="HWC").value)
        return library.proto.summary_pb2.Summary(value=values)

    shape = np.shape(_plain(name, data))
    if len(shape) != 4 or shape[-1] not in (1, 3, 4):
        raise ValueError(
            "Pictures must have shape [k, height, width, channels] with 1, 3 or 4 channels, got "
            f"{shape} for {name!r}. Give one picture as data[None]."
        )
    return _record(make, name, data, step)


def histogram(
    name: str,
    data: Any,
    step: Any = None,
    buckets: int | None = None,
    description: str | None = None,
) -> Any:
    """Records how values are spread.

    Args:
        name: What it is called.
        data: Numbers of any shape.
        step: As for ``scalar``.
        buckets: How many; default 30.
        description: Taken for TensorFlow's sake.

    Returns:
        Whether it is recorded.

    >>> import tempfile
    >>> import numpy as np
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.histogram("weights", np.random.randn(100), step=0)
    True
    """

    def make(library: Any, values: np.ndarray[Any, Any]) -> Any:
        return library.summary.histogram("", values.astype(np.float64), buckets or 30)

    return _record(make, name, data, step)


def text(name: str, data: str, step: Any = None, description: str | None = None) -> Any:
    """Records a text, which TensorBoard shows as Markdown.

    Args:
        name: What it is called.
        data: The text.
        step: As for ``scalar``.
        description: Taken for TensorFlow's sake.

    Returns:
        Whether it is recorded.

    >>> import tempfile
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     sg.summary.text("notes", "**begun**", step=0)
    True
    """

    def make(library: Any, value: np.ndarray[Any, Any]) -> Any:
        return library.summary.text("", str(value))

    return _record(make, name, np.asarray(data), step)


def flush(writer: SummaryWriter | None = None) -> None:
    """Flushes a writer, or this thread's default one.

    >>> import stratagem as sg
    >>> sg.summary.flush()
    """
    writer = writer or recording_state.current()[0]
    if writer is not None:
        writer.flush()


def _record(make: _Maker, name: str, data: Any, step: Any, *, is_figure: bool = False) -> Any:
    writer, default_step, condition = recording_state.current()
    if writer is None:
        return False
    step = default_step if step is None else step
    if step is None:
        raise ValueError(
            f"The summary {name!r} has no step. Give step=, or set one with as_default(step=…) or "
            "sg.summary.experimental.set_step."
        )
    replica: Any = context.get_replica_context()
    number = 0 if replica is None else replica.replica_id_in_sync_group
    parts = (number, condition, _plain(name, step), _plain(name, data))

    def write(number: Any, condition: Any, step: Any, value: Any) -> Any:
        if number != 0 or not condition or not writer.takes_part:
            return False
        writer.write(name, lambda library: make(library, np.asarray(value)), int(step))
        observer = recorder()
        if is_figure and observer is not None:
            observer.report({name: value})
        return True

    # In a program of several workers also where nothing is written: it is the same program everywhere.
    if any(map(is_tracer, parts)):
        jax.debug.callback(write, *parts)
        return condition
    return write(*parts)


def _plain(name: str, value: Any) -> Any:
    """Returns a value as an array or number.

    Raises:
        TypeError: If it is one for each replica.
    """
    if isinstance(value, Variable):
        value = value.read_value()
    if isinstance(value, DistributedValues):
        raise TypeError(
            f"A summary takes one value, got one for each replica for {name!r}. Reduce them first with "
            "strategy.reduce."
        )
    return value
