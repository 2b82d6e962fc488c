"""What keeps the workers of a strategy together while each runs Keras' loop."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.integrations.keras.trainer_internals import initial_epoch, set_initial_epoch
from stratagem._src.mesh.dispatch_queue import process_watch
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.variables.mirrored_variable import MirroredVariable

__all__ = ["callbacks_of_worker", "is_elastic", "leads"]

# What they write or send is the same everywhere, and must be written once.
_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)


def leads(strategy: Strategy) -> bool:
    """Returns whether this process is the one that prints and writes."""
    return strategy.extended.should_checkpoint


def is_elastic(strategy: Strategy | None) -> bool:
    """Returns whether workers may come to this one while it trains."""
    extended = None if strategy is None else strategy.extended
    return isinstance(extended, MultiWorkerExtended) and extended.is_elastic


def callbacks_of_worker(callbacks: Iterable[Any], strategy: Strategy, *, trains: bool) -> list[Any]:
    """Returns those of a user's callbacks that are for this worker, and one that keeps all together.

    Args:
        callbacks: The user's.
        strategy: Of several workers.
        trains: Whether they are for ``fit``.
    """
    given = list(callbacks)
    mine = [c for c in given if leads(strategy) or not isinstance(c, _WRITERS)]
    if trains:
        restores = any(isinstance(c, keras.callbacks.BackupAndRestore) for c in given)
        mine.append(_KeepTogether(strategy, restores=restores))
    return mine


class _KeepTogether(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Sees to it that all workers begin with the same state, and end after the same epoch.

    Args:
        strategy: The workers.
        restores: Whether the leader may have restored a state that the others have not.
    """

    def __init__(self, strategy: Strategy, *, restores: bool) -> None:
        super().__init__()
        self._strategy = strategy
        self._restores = restores

    def on_train_begin(self, logs: Any = None) -> None:
        """Brings all to the leader's state if it restored one, and compares them."""
        model, watch = self.model, process_watch()
        twins = _mirrored([*model.variables, *model.optimizer.variables])
        if self._restores:
            epochs = watch.exchange("keras", initial_epoch(model), "epoch that Keras begins with")
            set_initial_epoch(model, epochs[0])
            for twin in twins:
                twin.assign(self._strategy.extended.leader_value(twin.read_value(), twin.name))
        every = watch.exchange("keras", _checksum(twins), "weights that Keras begins with")
        _check_equal("begin with", every)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends the training of all workers if that of one is to end, and compares them again."""
        model = self.model
        twins = _mirrored([*model.variables, *model.optimizer.variables])
        mine = [bool(model.stop_training), _checksum(twins)]
        every = process_watch().exchange("keras", mine, f"end of epoch {epoch} of Keras")
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
            f"Every worker must {when} the same weights and state of the optimizer, but those of the "
            f"workers {others} differ from the leader's. Give all workers the same in set_weights() or "
            "load_weights() and in callbacks, or build the model in the strategy's scope, which takes "
            "the leader's."
        )


def _mirrored(variables: Iterable[Any]) -> list[MirroredVariable]:
    twins = [variable.own_twin() for variable in variables]
    return [twin for twin in twins if isinstance(twin, MirroredVariable)]
