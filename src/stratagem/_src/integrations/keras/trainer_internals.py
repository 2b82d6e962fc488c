"""The private names of Keras that the trainer needs: the only file that knows them.

``tests/unit/integrations/test_keras_trainer_internals.py`` has a test for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras.src.backend.jax import trainer
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_data_adapter, data_adapter, py_dataset_adapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
from keras.src.trainers.trainer import Trainer
from keras.src.utils.python_utils import is_default

__all__ = [
    "ArrayDataAdapter",
    "DataAdapter",
    "JAXTrainer",
    "PyDatasetAdapter",
    "Trainer",
    "arrays_of",
    "class_weight_to_sample_weights",
    "data_adapter_of",
    "distribute_data",
    "first_batch",
    "initial_epoch",
    "is_built",
    "is_default",
    "is_shuffled",
    "note_state_in_variables",
    "replace_data_adapter_of",
    "replace_distribute_data",
    "set_initial_epoch",
    "variables_of",
]

JAXTrainer: Any = trainer.JAXTrainer
ArrayDataAdapter: Any = array_data_adapter.ArrayDataAdapter
DataAdapter: Any = data_adapter.DataAdapter
PyDatasetAdapter: Any = py_dataset_adapter.PyDatasetAdapter

data_adapter_of: Callable[..., Any] = data_adapters.get_data_adapter
"""Returns what feeds Keras with the data that a user gave."""


def replace_data_adapter_of(function: Callable[..., Any]) -> None:
    """Has ``function`` asked for what feeds Keras with the data that a user gave."""
    data_adapters.get_data_adapter = function


def is_shuffled(adapter: Any) -> Any:
    """Returns whether an adapter of arrays or of a ``PyDataset`` puts them into random order."""
    if isinstance(adapter, ArrayDataAdapter):
        return adapter._shuffle
    return isinstance(adapter, PyDatasetAdapter) and adapter.shuffle


def arrays_of(adapter: Any) -> Any:
    """Returns the ``(x, y, sample_weight)`` whose rows an adapter of arrays gives, as far as there are."""
    return adapter._inputs


def is_built(model: Any) -> bool:
    """Returns whether all layers of a model have their variables."""
    return all(layer.built for layer in model._flatten_layers())


def first_batch(epoch_iterator: Any) -> Any:
    """Returns the first batch of Keras' iterator over an epoch."""
    for _, _, batches in epoch_iterator:
        return batches[0] if isinstance(batches, (list, tuple)) else next(batches)
    return None


def variables_of(model: Any, part: str) -> Sequence[Any]:
    """Returns the variables of one part of the state that Keras takes through a step."""
    if part == "optimizer_variables":
        return model.optimizer.variables if getattr(model, "optimizer", None) is not None else ()
    return getattr(model, part)


def note_state_in_variables(model: Any) -> None:
    """Notes that the variables of a model hold its state, and nothing else does."""
    model._jax_state = None
    model._jax_state_synced = True


def replace_distribute_data(function: Callable[[Any], Any]) -> None:
    """Has ``function`` called with each batch that is given to ``train_on_batch`` and the like."""
    trainer._distribute_data = function


distribute_data: Callable[[Any], Any] = trainer._distribute_data
"""Puts a batch on the devices."""


def initial_epoch(model: Any) -> int | None:
    """Returns the epoch that a callback has set for ``fit`` to begin with."""
    epoch: int | None = model._initial_epoch
    return epoch


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Sets the epoch for ``fit`` to begin with."""
    model._initial_epoch = epoch
