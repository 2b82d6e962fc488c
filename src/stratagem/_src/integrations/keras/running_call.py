"""Which call of ``fit``, ``evaluate`` and the like runs in a thread, and the state it has come to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from stratagem._src.integrations.keras.trainer_internals import (
    forget_jax_state,
    keep_value,
    lost_its_value,
    variables_of,
)
from stratagem._src.strategies.base import Strategy

__all__ = ["RunningCall", "begin_call", "running_call"]


class RunningCall:
    """One call of a model's ``fit``, ``evaluate``, ``predict`` or of those for one batch.

    Meanwhile Keras takes the values out of the variables, and carries them from step to step.

    Args:
        model: The Keras model.
        strategy: What it is trained by.
    """

    def __init__(self, model: Any, strategy: Strategy) -> None:
        self.model = model
        self.strategy = strategy
        self._parts: Sequence[str] = ()
        self._state: Sequence[Sequence[Any]] = ()

    def note(self, parts: Sequence[str], state: Sequence[Sequence[Any]]) -> None:
        """Notes the state after the last step that succeeded."""
        self._parts, self._state = parts, state

    def give_back(self) -> None:
        """Puts the last state into variables whose values are gone."""
        lost = False
        for part, values in zip(self._parts, self._state, strict=True):
            for variable, value in zip(variables_of(self.model, part), values):  # noqa: B905
                if lost_its_value(variable):
                    keep_value(variable, value)
                    lost = True
        if lost:
            forget_jax_state(self.model)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[RunningCall] = []


_calls = _Calls()


def running_call() -> RunningCall | None:
    """Returns the innermost call that runs in this thread."""
    return _calls.stack[-1] if _calls.stack else None


@contextlib.contextmanager
def begin_call(model: Any, strategy: Strategy) -> Iterator[RunningCall]:
    """Makes a call the innermost one for the block, which a failure leaves with all values in place."""
    call = RunningCall(model, strategy)
    _calls.stack.append(call)
    try:
        yield call
    except BaseException:
        call.give_back()
        raise
    finally:
        _calls.stack.pop()
