"""A step of a loop: one program for all iterations, whatever numbers and arrays they capture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.tracing import is_tracer
from stratagem._src.execution.dataset_loops.captures import CapturedValue, Captures
from stratagem._src.runtime.protocols import StrategyProtocol
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica

if TYPE_CHECKING:
    from stratagem._src.execution.function import Function

__all__ = ["LoopStep"]

_LARGEST_INT = np.iinfo(np.int32).max


class LoopStep:
    """The compiled form of a step.

    What the step captures is an input of its program. A number that does not change stays a number, and
    so does one that Python itself needs, for a shape or an ``if``: each value has its program then.

    Args:
        make: Makes a ``stratagem.function``.
    """

    def __init__(self, make: Callable[[Callable[..., Any]], Function]) -> None:
        self.function = make(self._run_in_replicas)
        self._lifted: frozenset[int] | None = None
        self._known_values: frozenset[int] = frozenset()
        self._before: dict[int, Any] = {}
        self._call = _Call()

    def run(
        self,
        strategy: StrategyProtocol,
        captures: Captures,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, bool]:
        """Runs the step in every replica; returns its results and whether it has been traced."""
        values = captures.values
        inputs = self._inputs(values)
        rest = [inputs, *self._fewer_inputs(values, inputs)]
        outer = self._call.current
        for attempt in rest:
            given = [
                _lift(value) if i in attempt else _keep(value) for i, value in enumerate(values)
            ]
            self._call.current = current = _Current(strategy, captures)
            try:
                result = self.function(given, args, kwargs)
            except Exception:
                if not current.failed_with_inputs or attempt is rest[-1]:
                    raise
            else:
                self._lifted = attempt
                self._known_values |= inputs - attempt
                return result, current.traced
            finally:
                self._call.current = outer
        raise AssertionError("the last attempt returns or raises")

    def _inputs(self, values: list[CapturedValue]) -> frozenset[int]:
        """Returns which of the values are to be inputs."""
        numbers = {i: value.value for i, value in enumerate(values) if value.number}
        if self._lifted is None:
            chosen = {i for i, value in enumerate(values) if value.changing and _fits(value)}
        else:
            changed = {i for i, value in numbers.items() if not _same(value, self._before.get(i))}
            chosen = {*self._lifted, *(i for i in changed if _fits(values[i]))}
            chosen = {i for i in chosen if _fits(values[i])}
        self._before = numbers
        return frozenset(chosen) - self._known_values

    def _fewer_inputs(
        self, values: list[CapturedValue], inputs: frozenset[int]
    ) -> list[frozenset[int]]:
        """Returns what to try if the step needs to know some of them: fewer and fewer."""
        whole = {i for i in inputs if values[i].number and isinstance(values[i].value, int)}
        numbers = {i for i in inputs if values[i].number}
        arrays = {i for i in inputs if not isinstance(values[i].value, (PerReplica, Mirrored))}
        tries = [inputs - whole, inputs - numbers, inputs - numbers - arrays]
        return [tried for tried in dict.fromkeys(tries) if tried != inputs]

    def _run_in_replicas(self, given: list[Any], args: Any, kwargs: Any) -> Any:
        current = self._call.current
        assert current is not None
        captures = current.captures
        current.traced = True
        if not any(is_tracer(_array_of(value)) for value in given):
            return current.strategy.run(captures.fn, args, kwargs)
        values = [
            captured.value
            if isinstance(value, _Known) or not is_tracer(_array_of(value))
            else value
            for value, captured in zip(given, captures.values, strict=True)
        ]
        try:
            return captures.call_with(values, lambda step: current.strategy.run(step, args, kwargs))
        except Exception:
            current.failed_with_inputs = True
            raise


class _Current:
    """What is being run."""

    def __init__(self, strategy: StrategyProtocol, captures: Captures) -> None:
        self.strategy = strategy
        self.captures = captures
        self.failed_with_inputs = False
        self.traced = False


class _Call(threading.local):
    current: _Current | None = None


class _Known:
    """An array that is a part of the key by its value."""

    __slots__ = ("_content",)

    def __init__(self, array: Any) -> None:
        known = np.asarray(array)
        self._content = (known.shape, known.dtype, known.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and other._content == self._content

    def __hash__(self) -> int:
        return hash(self._content)


def _lift(value: CapturedValue) -> Any:
    return jnp.asarray(value.value) if value.number else value.value


def _keep(value: CapturedValue) -> Any:
    return value.value if value.number else _Known(value.value)


def _fits(value: CapturedValue) -> bool:
    number = value.value
    return not value.number or not isinstance(number, int) or abs(number) <= _LARGEST_INT


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and repr(value) == repr(other)


def _array_of(value: Any) -> Any:
    if isinstance(value, PerReplica):
        return value._array
    return value._value() if isinstance(value, Mirrored) else value
