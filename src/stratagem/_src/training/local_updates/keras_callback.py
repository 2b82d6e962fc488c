"""Outer steps in Keras ``fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree

if TYPE_CHECKING:
    from stratagem._src.training.local_updates.local_updates import LocalUpdates

__all__ = ["make_callback"]


def make_callback(islands: LocalUpdates) -> Any:
    """Returns a callback that joins when training begins, counts batches, and leaves when it ends.

    Args:
        islands: The ``LocalUpdates`` that it drives.
    """
    # Imported here, after the program has chosen Keras's backend.
    import keras

    class IslandCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        """Joins the other islands, counts batches as inner steps, and leaves."""

        def on_train_begin(self, logs: PyTree = None) -> None:
            """Joins the other islands."""
            self._steps_of_batch = int(getattr(self.model, "steps_per_execution", 1))
            if islands.sync_every % self._steps_of_batch:
                raise InvalidArgumentError(
                    "sync_every must be a multiple of the model's steps_per_execution, got "
                    f"{islands.sync_every} and {self._steps_of_batch}."
                )
            steps, epochs = self.params.get("steps"), self.params.get("epochs")
            num_steps = steps * epochs if steps and epochs else None
            self._total = islands.begin_fit(self.model.trainable_variables, num_steps)

        def on_train_batch_end(self, batch: int, logs: PyTree = None) -> None:
            """Counts the steps of a batch."""
            for _ in range(self._steps_of_batch):
                islands.step()
            if self._total is not None and islands.num_steps >= self._total:
                self.model.stop_training = True

        def on_train_end(self, logs: PyTree = None) -> None:
            """Runs the last outer step and leaves."""
            islands.leave()

    return IslandCallback()
