"""Which call of ``fit``, ``evaluate`` and the like runs in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stratagem._src.strategies.base import Strategy

__all__ = ["RunningCall", "begin_call", "running_call"]


@dataclass(frozen=True, slots=True)
class RunningCall:
    """One call of a model's ``fit``, ``evaluate``, ``predict`` or of those for one batch.

    Args:
        model: The Keras model.
        strategy: What it belongs to.
    """

    model: Any
    strategy: Strategy

    @property
    def compiles(self) -> bool:
        """Whether the model's steps are compiled, and not run operation by operation."""
        return bool(not self.model.run_eagerly and self.model.jit_compile)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[RunningCall] = []


_calls = _Calls()


def running_call() -> RunningCall | None:
    """Returns the innermost call that runs in this thread."""
    return _calls.stack[-1] if _calls.stack else None


@contextlib.contextmanager
def begin_call(model: Any, strategy: Strategy) -> Iterator[RunningCall]:
    """Makes a call the innermost one for the block."""
    call = RunningCall(model, strategy)
    _calls.stack.append(call)
    try:
        yield call
    finally:
        _calls.stack.pop()
