"""``ElasticFit``: Keras ``fit`` in elastic training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stratagem._src.integrations.keras.loader import load_keras
from stratagem._src.training.elastic.elastic_loop import ElasticLoop

if TYPE_CHECKING:
    Callback = object  # Keras has no types
else:
    Callback = load_keras().callbacks.Callback  # before the imports that need its backend

from stratagem._src.integrations.keras.trainer_internals import set_initial_epoch

__all__ = ["ElasticFit"]


class ElasticFit(Callback):
    """Makes Keras ``fit`` resume with the interrupted epoch when workers are lost or join.

    Boundaries are between epochs: an interrupted epoch restarts with the state of model and optimizer at
    its beginning. Pass it to ``fit`` inside an elastic function, as the last callback: changes of the other
    callbacks up to that point, such as the learning rate, are kept. Their own internal state is not.

    Args:
        loop: The argument of the elastic function.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MultiWorkerMirroredStrategy()  # no cluster: one worker
    >>> with strategy.scope():
    ...     model = sg.keras.Sequential([sg.keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> data = sg.data.Dataset.from_tensor_slices(([[1.0], [2.0]], [[2.0], [4.0]])).batch(2)
    >>> @sg.train.elastic(strategy)
    ... def train(loop):
    ...     model.fit(data, epochs=3, verbose=0, callbacks=[sg.train.ElasticFit(loop)])
    >>> train()
    >>> int(model.optimizer.iterations)
    3
    """

    model: Any
    params: dict[str, Any]

    def __init__(self, loop: ElasticLoop) -> None:
        super().__init__()
        self._loop = loop
        self._epochs: Iterator[int] = iter(())
        self._num_done = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Makes Keras start with the epoch at which the run resumes."""
        self._epochs = self._loop.range(self.params["epochs"])
        self._advance()
        if self._num_done:  # otherwise fit() or another callback decides
            set_initial_epoch(self.model, self._num_done)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Skips epochs before the initial epoch of Keras."""
        while self._num_done < epoch:
            self._advance()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Advances to the next boundary."""
        self._advance()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Completes the loop, even if Keras stopped before the last epoch."""
        for _ in self._epochs:
            continue
        set_initial_epoch(self.model, None)

    def _advance(self) -> None:
        self._num_done = next(self._epochs, self.params["epochs"])
