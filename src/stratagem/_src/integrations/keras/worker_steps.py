"""Steps of Keras models on parameter servers: those of ``fit`` on workers, the others on the chief."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.types import PyTree
from stratagem._src.execution.function import function
from stratagem._src.integrations.keras.data_steps import call_step, is_own_step, takes_data
from stratagem._src.integrations.keras.keras_internals import KerasModel
from stratagem._src.integrations.keras.trainer_internals import variables_of
from stratagem._src.integrations.keras.worker_data import (
    WorkerBatch,
    batch_on_chief,
    coordinator_of,
    one_replica,
)
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.strategies.base import Strategy

__all__ = ["ChiefSteps", "PendingLogs", "WorkerSteps", "check_step"]

# Enough that no worker is idle, and few enough that batches do not fill the memory.
_MAX_QUEUED_PER_WORKER = 16


class PendingLogs(dict[str, Any]):
    """The logs of a step that may not have run yet. It is empty; ``final`` returns the logs."""

    def __init__(self, result: RemoteValue | None = None) -> None:
        super().__init__()
        self._result = result

    def final(self) -> Any:
        """Returns what the step returned; ``None`` for a step of Keras, whose logs are the metrics."""
        return None if self._result is None else self._result.fetch()


def check_step(model: KerasModel, name: str) -> None:
    """Checks that a step of a model can run on parameter servers.

    Raises:
        UnsupportedError: If it takes a state.
    """
    if is_own_step(model, name) and not takes_data(model, name):
        raise UnsupportedError(
            f"{name}(self, state, data) of {type(model).__name__} computes a new state, but variables "
            "on parameter servers are updated in place, by several workers at once. Write "
            f"{name}(self, data), with a GradientTape."
        )


class _Steps:
    """Steps of one kind.

    Args:
        model: The Keras model.
        name: ``train_step``, ``test_step`` or ``predict_step``.
        strategy: The strategy.

    Raises:
        UnsupportedError: If the step takes a state.
    """

    def __init__(self, model: KerasModel, name: str, strategy: Strategy) -> None:
        check_step(model, name)
        self.strategy = strategy
        self._model = model
        self._compiles = not model.run_eagerly
        self._variables = self._variables_now()

    def fits(self) -> bool:
        """Returns whether the variables are still those of the steps."""
        now = self._variables_now()
        return len(now) == len(self._variables) and all(map(operator.is_, now, self._variables))

    def _variables_now(self) -> list[Any]:
        model = self._model
        return [*model.trainable_variables, None, *variables_of(model, "optimizer_variables")]

    def _compiled(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return function(step) if self._compiles else step


class WorkerSteps(_Steps):
    """The ``train_function`` of a model: schedules each step on a worker.

    Args:
        model: The Keras model.
        strategy: The strategy.
    """

    def __init__(self, model: KerasModel, strategy: Strategy) -> None:
        super().__init__(model, "train_step", strategy)
        self._coordinator = coordinator_of(strategy)
        self._queued: collections.deque[RemoteValue] = collections.deque()
        self._returns_logs = is_own_step(model, "train_step")

        def step(batch: PyTree) -> Any:
            return call_step(model, "train_step", one_replica(batch))

        def step_of_iterator(iterator: Iterator[Any]) -> Any:
            return call_step(model, "train_step", one_replica(next(iterator)))

        self._step, self._step_of_iterator = map(self._compiled, (step, step_of_iterator))

    def __call__(self, state: PyTree, iterator: Iterator[Any]) -> Any:
        """Schedules the next ``steps_per_execution`` steps."""
        value = self._schedule(next(iterator))
        for _ in range(self._model.steps_per_execution - 1):
            try:
                batch = next(iterator)
            except StopIteration:
                break
            value = self._schedule(batch)
        return PendingLogs(value if self._returns_logs else None), state

    def _schedule(self, batch: PyTree) -> RemoteValue:
        self._wait_for_room()
        coordinator = self._coordinator
        if isinstance(batch, WorkerBatch):
            value = coordinator.schedule(self._step_of_iterator, args=(batch.data.for_workers(),))
        else:
            value = coordinator.schedule(self._step, args=(batch,))
        self._queued.append(value)
        return value

    def _wait_for_room(self) -> None:
        limit = _MAX_QUEUED_PER_WORKER * max(1, len(self._coordinator.workers))
        while len(self._queued) >= limit:
            try:
                self._queued[0].fetch()
                self._queued.popleft()  # after it: an interrupted fit() cancels what is left
            except Exception:
                self._coordinator.join()  # raises the error of the step that failed first
                raise

    def finish(self) -> None:
        """Waits until all scheduled steps have ended.

        Raises:
            Exception: The error of a step.
        """
        self._coordinator.join()
        self._queued.clear()

    def cancel(self) -> None:
        """Cancels the steps that have not begun, and waits a few seconds for the others."""
        self._coordinator._dispatcher.cancel(list(self._queued))
        self._queued.clear()


class ChiefSteps(_Steps):
    """The ``test_function`` or ``predict_function`` of a model: steps of the chief.

    A step reads the variables, and of an embedding only the rows of the batch.

    Args:
        model: The Keras model.
        name: ``test_step`` or ``predict_step``.
        strategy: The strategy.
    """

    def __init__(self, model: KerasModel, name: str, strategy: Strategy) -> None:
        super().__init__(model, name, strategy)
        self._is_predict = name == "predict_step"
        self._returns_logs = is_own_step(model, name)
        self._step = self._compiled(lambda batch: call_step(model, name, batch))

    def __call__(self, state: PyTree, iterator: Iterator[Any]) -> Any:
        """Runs the next ``steps_per_execution`` steps; returns the last logs, or all predictions."""
        results = [self._step(batch_on_chief(next(iterator)))]
        for _ in range(self._model.steps_per_execution - 1):
            try:
                batch = batch_on_chief(next(iterator))
            except StopIteration:
                break
            results.append(self._step(batch))
        if self._is_predict:
            return jax.tree.map(lambda *parts: np.concatenate(parts), *results), state
        return results[-1] if self._returns_logs else PendingLogs(), state
