"""Keras callbacks under strategies: which run in which worker, and which run after each batch."""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.integrations.keras.elastic_fit import ElasticFit
from stratagem._src.integrations.keras.keras_internals import KerasObject, Logs
from stratagem._src.integrations.keras.trainer_calls import running_call
from stratagem._src.integrations.keras.trainer_internals import (
    initial_epoch,
    is_default,
    set_initial_epoch,
)
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.training.elastic.elastic_loop import in_open_loop
from stratagem._src.variables.mirrored_variable import MirroredVariable

__all__ = ["callbacks_of_worker", "install_batch_callbacks", "is_elastic", "is_leader"]

_log = logging.getLogger("stratagem")
_warned: list[str] = []
# Their output is the same in every worker, so only the leader runs them.
_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)


def is_leader(strategy: Strategy) -> bool:
    """Returns whether this process is the leader, which prints and writes files."""
    return strategy.extended.should_checkpoint


def is_elastic(strategy: Strategy | None) -> bool:
    """Returns whether workers may join during training."""
    extended = None if strategy is None else strategy.extended
    return isinstance(extended, MultiWorkerExtended) and extended.is_elastic


def callbacks_of_worker(callbacks: Iterable[Any], strategy: Strategy, *, trains: bool) -> list[Any]:
    """Returns the user's callbacks for this worker, and one that synchronizes the workers.

    Args:
        callbacks: The user's callbacks.
        strategy: The strategy of the workers.
        trains: Whether they are for ``fit``.
    """
    given = list(callbacks)
    mine = [c for c in given if is_leader(strategy) or not isinstance(c, _WRITERS)]
    if trains and is_elastic(strategy) and is_leader(strategy):
        _warn_of_missing_loop(given)
    if trains:
        restores = any(isinstance(c, keras.callbacks.BackupAndRestore) for c in given)
        mine.append(_SyncWorkers(strategy, restores=restores))
    return mine


def _warn_of_missing_loop(given: Iterable[Any]) -> None:
    """Warns once of a ``fit`` that repeats its epochs when workers are lost, without saying so."""
    knows_its_place = any(
        isinstance(c, (ElasticFit, keras.callbacks.BackupAndRestore)) for c in given
    )
    if knows_its_place or in_open_loop() or _warned:
        return
    _warned.append("fit without its loop")
    _log.warning(
        "fit() in an elastic job repeats all of its epochs when workers are lost or join. Call it in the "
        "function of sg.train.elastic, with callbacks=[sg.train.ElasticFit(loop)]."
    )


class _SyncWorkers(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Ensures that all workers start with the same state and stop after the same epoch.

    Args:
        strategy: The strategy of the workers.
        restores: Whether the leader may have restored a state that the others do not have.
    """

    def __init__(self, strategy: Strategy, *, restores: bool) -> None:
        super().__init__()
        self._strategy = strategy
        self._restores = restores

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcasts the leader's state if it restored one, and compares the workers."""
        model, watch = self.model, process_monitor()
        twins = _mirrored([*model.variables, *model.optimizer.variables])
        if self._restores:
            epochs = watch.all_gather_object(
                "keras", initial_epoch(model), "epoch that Keras begins with"
            )
            set_initial_epoch(model, epochs[0])
            for twin in twins:
                twin.assign(self._strategy.extended.leader_value(twin.read_value(), twin.name))
        every = watch.all_gather_object("keras", _checksum(twins), "weights that Keras begins with")
        _check_equal("begin with", every)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Stops all workers if one stops, and compares them again."""
        model = self.model
        twins = _mirrored([*model.variables, *model.optimizer.variables])
        mine = [bool(model.stop_training), _checksum(twins)]
        every = process_monitor().all_gather_object("keras", mine, f"end of epoch {epoch} of Keras")
        _check_equal(f"end epoch {epoch} with", [checksum for _, checksum in every])
        model.stop_training = any(stops for stops, _ in every)


def _checksum(twins: list[MirroredVariable]) -> list[int]:
    checksum = 0
    for twin in twins:
        checksum = zlib.crc32(np.asarray(twin.read_value()).tobytes(), checksum)
    return [len(twins), checksum]


def _check_equal(when: str, every: list[list[int]]) -> None:
    others = [i for i, one in enumerate(every) if one != every[0]]
    if others:
        raise ReplicaMismatchError(
            f"Every worker must {when} the same weights and optimizer state, but those of the "
            f"workers {others} differ from the leader's. Set the same values in all workers with "
            "set_weights(), load_weights() and callbacks, or build the model in the strategy's scope, "
            "which uses the leader's values."
        )


def _mirrored(variables: Iterable[Any]) -> list[MirroredVariable]:
    twins = [variable.own_twin() for variable in variables]
    return [twin for twin in twins if isinstance(twin, MirroredVariable)]


# The default on_train_batch_end of Keras calls on_batch_end, so both hooks count.
_HOOKS = {
    "on_train_batch_end": ("on_train_batch_end", "on_batch_end"),
    "on_test_batch_end": ("on_test_batch_end",),
    "on_predict_batch_end": ("on_predict_batch_end",),
}


def install_batch_callbacks() -> None:
    """Skips batch callbacks of models under a strategy if no callback uses them.

    Otherwise Keras passes the batch's results to a thread, which waits for them and converts them to
    numbers that nothing uses, while the next step should be launched.
    """
    for name, hooks in _HOOKS.items():
        original = getattr(keras.callbacks.CallbackList, name)
        setattr(keras.callbacks.CallbackList, name, _if_used(original, hooks))


def _if_used(original: Callable[..., None], hooks: tuple[str, ...]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_batch_end(self: KerasObject, batch: int, logs: Logs = None) -> None:
        if running_call() is None or any(
            not is_default(getattr(callback, hook)) for callback in self.callbacks for hook in hooks
        ):
            original(self, batch, logs)

    return on_batch_end
