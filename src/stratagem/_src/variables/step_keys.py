"""``StepKeys``: random keys for a step that JAX traces once and runs many times.

A key that is drawn while such a step is traced would be a constant, and every run would repeat its numbers.
So the step gets keys as arguments, new ones for each run, and derives its own from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import PyTree, Tensor
from stratagem._src.jax_compat.tracing import computes_in, computing_trace

if TYPE_CHECKING:
    from stratagem._src.variables.random_state import RandomState

__all__ = ["KeyedStep", "StepKeys", "placeholder_keys"]


class StepKeys:
    """The keys of one trace of a step.

    Args:
        states: The random states that the step is known to draw from.
        keys: The data of a key of each, traced.

    Attributes:
        missing: The states that it also draws from, whose keys are placeholders.
    """

    def __init__(self, states: Sequence[RandomState], keys: Sequence[Tensor]) -> None:
        self._states = states
        self._keys = keys
        self._num_drawn: dict[int, int] = {}
        self._trace = computing_trace()
        self.missing: list[RandomState] = []

    def is_current(self) -> bool:
        """Returns whether the caller is in the step itself or in a gradient, not in a loop or the like."""
        return computes_in(self._trace)

    def next_key(self, state: RandomState, impl: str) -> Any:
        """Returns a key that is unique in this run of the step."""
        base = next(
            (key for known, key in zip(self._states, self._keys, strict=True) if known is state),
            None,
        )
        if base is None:
            base = jnp.zeros(2, jnp.uint32)
            if not any(one is state for one in self.missing):
                self.missing.append(state)
        number = self._num_drawn[id(state)] = self._num_drawn.get(id(state), -1) + 1
        return jax.random.fold_in(jax.random.wrap_key_data(base, impl=impl), number)


class _MissingKeysError(BaseException):
    """The step draws from states of which it got no keys: trace it again, with their keys."""


class KeyedStep:
    """A step of a state and a batch as a function of random keys too.

    Args:
        step: The step. It may be traced twice.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._states: list[RandomState] = []

    def trace(self, state: PyTree, batch: PyTree, keys: Sequence[Tensor]) -> Any:
        """Returns ``step(state, batch)``, in whose place it is traced; called in ``run`` only."""
        with _enter(StepKeys(self._states, keys)) as given:
            result = self._step(state, batch)
        if given.missing:
            self._states += given.missing
            raise _MissingKeysError
        return result

    def run(
        self,
        call: Callable[[list[Any]], Any],
        share: Callable[[Sequence[RandomState]], None] = lambda states: None,
    ) -> Any:
        """Returns ``call(keys)``, which calls or traces the step with new keys.

        Args:
            call: The function. It is called again if its trace finds that the step draws from more states.
            share: Is called with the states that are found.
        """
        while True:
            num_known = len(self._states)
            try:
                return call([jax.random.key_data(state.next_key()) for state in self._states])
            except _MissingKeysError:
                share(self._states[num_known:])


@contextlib.contextmanager
def _enter(keys: StepKeys) -> Iterator[StepKeys]:
    thread = THIS_THREAD.state
    before, thread.step_keys = thread.step_keys, keys
    try:
        yield keys
    finally:
        thread.step_keys = before


def placeholder_keys() -> contextlib.AbstractContextManager[StepKeys]:
    """Lets the block draw keys while it is traced for shapes alone; random states do not change."""
    return _enter(StepKeys((), ()))
