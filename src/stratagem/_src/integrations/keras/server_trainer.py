"""``fit``, ``evaluate`` and ``predict`` of Keras models on parameter servers.

Keras's own loops run on the chief. ``fit`` schedules steps on workers and waits for them at the end of each
epoch; ``evaluate`` and ``predict`` compute on the chief. If servers are lost and come back, what the chief
did meanwhile is repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import keras

from stratagem._src.core.errors import PSUnavailableError, UnsupportedError
from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.keras_internals import Argument, KerasModel, KerasObject
from stratagem._src.integrations.keras.model_strategy import strategy_of_model
from stratagem._src.integrations.keras.trainer_calls import running_call
from stratagem._src.integrations.keras.trainer_internals import Trainer, is_default
from stratagem._src.integrations.keras.worker_data import coordinator_of
from stratagem._src.integrations.keras.worker_steps import PendingLogs, WorkerSteps
from stratagem._src.parameter_server.coordinator.cluster_coordinator import ClusterCoordinator
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.parameter_server import ParameterServerExtended

__all__ = ["call_on_servers", "finish_steps", "install_server_trainer", "is_on_parameter_servers"]

Result = TypeVar("Result")

_HOOKS = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
# These use batches only if told so.
_BY_EPOCH = {
    keras.callbacks.ModelCheckpoint: "save_freq",
    keras.callbacks.BackupAndRestore: "save_freq",
    keras.callbacks.TensorBoard: "update_freq",
}


def is_on_parameter_servers(strategy: Strategy | None) -> bool:
    """Returns whether a model with this strategy has its variables on parameter servers."""
    extended = None if strategy is None else strategy.extended
    return isinstance(extended, ParameterServerExtended)


def install_server_trainer() -> None:
    """Patches what Keras's loops do on the chief between steps."""
    Trainer.reset_metrics = _repeated(Trainer.reset_metrics)
    Trainer.get_metrics_result = _repeated(Trainer.get_metrics_result)
    Trainer._get_metrics_result_or_logs = _of_last_step(Trainer._get_metrics_result_or_logs)
    for name in _HOOKS:
        hook = _repeating_hooks(getattr(keras.callbacks.CallbackList, name))
        setattr(keras.callbacks.CallbackList, name, hook)


def call_on_servers(
    model: KerasModel,
    strategy: Strategy,
    name: str,
    arguments: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """Calls a method of a model on parameter servers.

    Args:
        model: The Keras model.
        strategy: Its strategy.
        name: The name of the method.
        arguments: Its arguments.
        call: Calls Keras's own method.

    Raises:
        UnsupportedError: If a callback, or the method, needs the result of each batch.
    """
    if name in ("train_on_batch", "test_on_batch"):
        raise UnsupportedError(
            f"{name} waits for one batch, but steps on parameter servers are asynchronous. Use fit() and "
            "evaluate(), or schedule steps with ClusterCoordinator.schedule()."
        )
    coordinator = coordinator_of(strategy)
    if name == "fit":
        _check_callbacks(arguments.get("callbacks"))
        try:
            return call()
        except BaseException:
            finish_steps(model)
            raise
    data = arguments.get("x")
    return _until_undisturbed(coordinator, call, repeatable=not hasattr(data, "__next__"))


def finish_steps(model: KerasModel) -> None:
    """Waits until all scheduled steps of a model have ended; cancels them if its ``fit`` is failing.

    Raises:
        Exception: The error of a step.
    """
    steps = getattr(model, "train_function", None)
    if isinstance(steps, WorkerSteps):
        call = running_call()
        if call is not None and call.is_failing:
            steps.cancel()  # none of them runs in a later call
        else:
            steps.finish()
    model._jax_state_synced = True


def _check_callbacks(callbacks: PyTree) -> None:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    found = [type(c).__name__ for c in keras.tree.flatten(callbacks or []) if _uses_batches(c)]
    if found:
        raise UnsupportedError(
            "Callbacks on parameter servers run at the ends of epochs, because steps are asynchronous, but "
            f"{', '.join(found)} use batches. Write on_epoch_end(), and choose steps_per_epoch for how "
            "often it runs."
        )


def _uses_batches(callback: Any) -> bool:
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return False
    for kind, option in _BY_EPOCH.items():
        if type(callback) is kind:
            return getattr(callback, option, "epoch") != "epoch"
    return any(not is_default(getattr(callback, hook)) for hook in _BATCH_HOOKS)


def _until_undisturbed(
    coordinator: ClusterCoordinator, call: Callable[[], Result], *, repeatable: bool = True
) -> Result:
    """Returns ``call()``; repeats it if servers were lost and restored meanwhile.

    Raises:
        PSUnavailableError: If a server is lost for good.
    """
    while True:
        coordinator.join()
        before = len(coordinator.recoveries)
        result = _until_servers_answer(coordinator, call) if repeatable else call()
        if len(coordinator.recoveries) == before or not repeatable:
            return result


def _until_servers_answer(coordinator: ClusterCoordinator, call: Callable[[], Result]) -> Result:
    """Returns ``call()``; repeats it if it raises because servers are lost, when they are back.

    Raises:
        PSUnavailableError: If a server is lost for good.
    """
    while True:
        before = _num_losses(coordinator)
        try:
            return call()
        except PSUnavailableError:
            coordinator.join()  # waits for the servers, or raises
            if _num_losses(coordinator) == before:
                raise


def _num_losses(coordinator: ClusterCoordinator) -> int:
    restorer = coordinator._dispatcher.restorer
    return 0 if restorer is None else restorer.num_losses


class _RepeatingHooks:
    """A callback whose hooks are called again if servers were lost meanwhile.

    Args:
        callback: The callback.
        coordinator: The coordinator of its model's strategy.
    """

    def __init__(self, callback: Any, coordinator: ClusterCoordinator) -> None:
        self._callback = callback
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Callable[..., None]:
        hook = getattr(self._callback, name)
        return lambda *args, **kwargs: _until_servers_answer(
            self._coordinator, lambda: hook(*args, **kwargs)
        )


def _repeating_hooks(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def hooks(self: KerasObject, *args: Argument, **kwargs: Argument) -> None:
        strategy = None if self.model is None else strategy_of_model(self.model)
        if strategy is None or not is_on_parameter_servers(strategy):
            original(self, *args, **kwargs)
            return
        callbacks, coordinator = self.callbacks, coordinator_of(strategy)
        self.callbacks = [_RepeatingHooks(callback, coordinator) for callback in callbacks]
        try:
            original(self, *args, **kwargs)
        finally:
            self.callbacks = callbacks

    return hooks


def _repeated(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: KerasModel, *args: Argument, **kwargs: Argument) -> Any:
        strategy = strategy_of_model(self)
        if (
            strategy is None
            or not isinstance(strategy.extended, ParameterServerExtended)
            or strategy.extended.is_on_worker
        ):
            return original(self, *args, **kwargs)
        return _until_undisturbed(coordinator_of(strategy), lambda: original(self, *args, **kwargs))

    return method


def _of_last_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def result_or_logs(self: KerasModel, logs: Any) -> Any:
        if isinstance(logs, PendingLogs):
            logs = logs.final()
            if logs is None:
                return self.get_metrics_result()
        return original(self, logs)

    return result_or_logs
