"""``ElasticFit``: Keras' ``fit`` in an elastic run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stratagem._src.integrations.keras.door import load_keras
from stratagem._src.training.elastic.elastic_loop import ElasticLoop

if TYPE_CHECKING:
    Callback = object  # Keras has no types
else:
    Callback = load_keras().callbacks.Callback  # before whatever else needs its backend

from stratagem._src.integrations.keras.trainer_internals import set_initial_epoch

__all__ = ["ElasticFit"]


class ElasticFit(Callback):
    """Has Keras' ``fit`` go on with the epoch that was at work when workers were lost or others came.

    Boundaries are between epochs: an epoch that was at work begins anew, with what model and optimizer
    had at its beginning. Give it to ``fit`` inside of an elastic function, as the last callback: what the
    others have changed by then, as the learning rate, is kept. What they remember themselves is not.

    Args:
        loop: What the elastic function got.

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

    def on_train_begin(self, logs: Any = None) -> None:
        """Has Keras begin with the epoch at which the run goes on."""
        self._epochs = self._loop.range(self.params["epochs"])
        self._advance()
        if self._num_done:  # or it begins where fit() or another callback says
            set_initial_epoch(self.model, self._num_done)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Passes by epochs that Keras was not to begin with."""
        while self._num_done < epoch:
            self._advance()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Comes to a boundary."""
        self._advance()

    def on_train_end(self, logs: Any = None) -> None:
        """Notes that nothing is left to do, also if Keras ended before the last epoch."""
        for _ in self._epochs:
            continue
        set_initial_epoch(self.model, None)

    def _advance(self) -> None:
        self._num_done = next(self._epochs, self.params["epochs"])
