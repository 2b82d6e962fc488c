"""The default writer of the current context, its step, and whether summaries are written."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stratagem._src.core.types import ArrayLike

if TYPE_CHECKING:
    from stratagem._src.telemetry.summary.writer import SummaryWriter

__all__ = [
    "current",
    "entered",
    "get_step",
    "record_if",
    "set_default",
    "set_step",
    "should_record_summaries",
]


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    writer: SummaryWriter | None = None
    step: Any = None
    condition: Any = True


# A context variable, not a thread-local: replica threads inherit the writer of the thread that runs them.
_state: contextvars.ContextVar[_State] = contextvars.ContextVar("stratagem_summary")
_NOTHING = _State()


def current() -> tuple[SummaryWriter | None, Any, Any]:
    """Returns the current writer and step, and whether to write summaries."""
    state = _state.get(_NOTHING)
    condition = state.condition() if callable(state.condition) else state.condition
    return state.writer, state.step, condition


@contextlib.contextmanager
def _changed(**changes: Any) -> Iterator[None]:
    token = _state.set(dataclasses.replace(_state.get(_NOTHING), **changes))
    try:
        yield
    finally:
        _state.reset(token)


def entered(writer: SummaryWriter, step: ArrayLike) -> contextlib.AbstractContextManager[None]:
    """Sets the default writer for a block, and the step unless it is ``None``."""
    return _changed(writer=writer, **({} if step is None else {"step": step}))


def set_default(writer: SummaryWriter, step: ArrayLike) -> None:
    """Sets the default writer, and the step unless it is ``None``."""
    state = dataclasses.replace(_state.get(_NOTHING), writer=writer)
    _state.set(state if step is None else dataclasses.replace(state, step=step))


@contextlib.contextmanager
def record_if(condition: bool | Callable[[], Any]) -> Iterator[None]:
    """Writes the summaries of the block only if ``condition`` holds.

    Args:
        condition: A boolean, or a function that is called for each summary. In a compiled function it is
            called when the function is traced; it may return an array of the program.

    >>> import tempfile
    >>> import stratagem as sg
    >>> with sg.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     for step in range(4):
    ...         with sg.summary.record_if(step % 2 == 0):
    ...             print(sg.summary.scalar("loss", 0.5, step=step))
    True
    False
    True
    False
    """
    with _changed(condition=condition):
        yield


def should_record_summaries() -> Any:
    """Returns whether a summary would be written: there is a writer, and ``record_if`` allows it.

    >>> import stratagem as sg
    >>> sg.summary.should_record_summaries()
    False
    """
    writer, _, condition = current()
    return condition if writer is not None else False


def set_step(step: ArrayLike) -> None:
    """Sets the default step of this thread's summaries: a number, or a variable.

    >>> import stratagem as sg
    >>> sg.summary.experimental.set_step(7)
    >>> sg.summary.experimental.get_step()
    7
    """
    _state.set(dataclasses.replace(_state.get(_NOTHING), step=step))


def get_step() -> Any:
    """Returns the default step of this thread's summaries, or ``None``.

    >>> import stratagem as sg
    >>> with sg.summary.create_noop_writer().as_default(step=2):
    ...     sg.summary.experimental.get_step()
    2
    """
    return _state.get(_NOTHING).step
