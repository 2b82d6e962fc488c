"""Which writer is the default one here, at which step, and whether anything is recorded."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

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


# Not a thread's own: replicas that run in threads record where the thread that runs them does.
_state: contextvars.ContextVar[_State] = contextvars.ContextVar("stratagem_summary")
_NOTHING = _State()


def current() -> tuple[SummaryWriter | None, Any, Any]:
    """Returns the writer, the step, and whether to record here."""
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


def entered(writer: SummaryWriter, step: Any) -> contextlib.AbstractContextManager[None]:
    """Makes a writer the default one for a block, and ``step`` unless it is ``None``."""
    return _changed(writer=writer, **({} if step is None else {"step": step}))


def set_default(writer: SummaryWriter, step: Any) -> None:
    """Makes a writer the default one, and ``step`` unless it is ``None``."""
    state = dataclasses.replace(_state.get(_NOTHING), writer=writer)
    _state.set(state if step is None else dataclasses.replace(state, step=step))


@contextlib.contextmanager
def record_if(condition: bool | Callable[[], Any]) -> Iterator[None]:
    """Has summaries of the block recorded only where ``condition`` holds.

    Args:
        condition: Whether to record, or a function that says so each time. Inside a compiled function it
            is asked when the function is traced; what it returns may be an array of the program.

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
    """Returns whether a summary would be recorded here: there is a writer, and ``record_if`` allows it.

    >>> import stratagem as sg
    >>> sg.summary.should_record_summaries()
    False
    """
    writer, _, condition = current()
    return condition if writer is not None else False


def set_step(step: Any) -> None:
    """Sets the step of this thread's summaries that say none: a number, or a variable that counts.

    >>> import stratagem as sg
    >>> sg.summary.experimental.set_step(7)
    >>> sg.summary.experimental.get_step()
    7
    """
    _state.set(dataclasses.replace(_state.get(_NOTHING), step=step))


def get_step() -> Any:
    """Returns the step of this thread's summaries that say none; ``None`` if there is none.

    >>> import stratagem as sg
    >>> with sg.summary.create_noop_writer().as_default(step=2):
    ...     sg.summary.experimental.get_step()
    2
    """
    return _state.get(_NOTHING).step
