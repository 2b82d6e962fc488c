"""The private names of Keras that the trainer needs; no other file uses them.

``tests/unit/integrations/test_keras_trainer_internals.py`` has a test for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.backend.jax import trainer
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_data_adapter, data_adapter, py_dataset_adapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
from keras.src.trainers.trainer import Trainer
from keras.src.utils.python_utils import is_default

from stratagem._src.integrations.keras.keras_internals import KerasAdapter, KerasModel, KerasObject

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
    "jit",
    "note_built",
    "note_state_in_variables",
    "own_optimizers",
    "replace_data_adapter_of",
    "replace_distribute_data",
    "replace_jit",
    "set_initial_epoch",
    "variables_of",
]

JAXTrainer: Any = trainer.JAXTrainer
ArrayDataAdapter: Any = array_data_adapter.ArrayDataAdapter
DataAdapter: Any = data_adapter.DataAdapter
PyDatasetAdapter: Any = py_dataset_adapter.PyDatasetAdapter

data_adapter_of: Callable[..., Any] = data_adapters.get_data_adapter
"""Returns the data adapter for the data of a user."""


def replace_data_adapter_of(function: Callable[..., Any]) -> None:
    """Makes Keras call ``function`` for the data adapter of a user's data."""
    data_adapters.get_data_adapter = function


def is_shuffled(adapter: KerasAdapter) -> Any:
    """Returns whether an adapter of arrays or of a ``PyDataset`` shuffles."""
    if isinstance(adapter, ArrayDataAdapter):
        return adapter._shuffle
    return isinstance(adapter, PyDatasetAdapter) and adapter.shuffle


def arrays_of(adapter: KerasAdapter) -> Any:
    """Returns the ``(x, y, sample_weight)`` of an adapter of arrays, without missing parts."""
    return adapter._inputs


def is_built(model: KerasModel) -> bool:
    """Returns whether all layers of a model are built."""
    return all(layer.built for layer in model._flatten_layers())


def first_batch(epoch_iterator: KerasObject) -> Any:
    """Returns the first batch of an epoch iterator of Keras."""
    for _, _, batches in epoch_iterator:
        return batches[0] if isinstance(batches, (list, tuple)) else next(batches)
    return None


def variables_of(model: KerasModel, part: str) -> Sequence[Any]:
    """Returns the variables of one part of a model's state."""
    if part != "optimizer_variables":
        return getattr(model, part)
    optimizer = getattr(model, "optimizer", None)
    optimizers = [*([] if optimizer is None else [optimizer]), *own_optimizers(model)]
    return [variable for one in optimizers for variable in one.variables]


def own_optimizers(model: KerasModel) -> list[Any]:
    """Returns the optimizers that are attributes of a model, besides ``model.optimizer``."""
    found: dict[int, Any] = {}
    for name, value in model.__dict__.items():
        if name not in _NO_OPTIMIZERS:
            for leaf in (
                keras.tree.flatten(value) if isinstance(value, (list, tuple, dict)) else [value]
            ):
                if isinstance(leaf, keras.Optimizer) and leaf is not getattr(
                    model, "optimizer", None
                ):
                    found.setdefault(id(leaf), leaf)
    return list(found.values())


# Keras keeps its state and the layers in these.
_NO_OPTIMIZERS = (
    "_jax_state",
    "_layers",
    "_metrics",
    "_trainable_variables",
    "_non_trainable_variables",
)


def note_built(model: KerasModel) -> None:
    """Marks a model as built whose layers all are, such as one without a ``call``."""
    if all(layer.built for layer in model._flatten_layers(include_self=False)):
        model.built = True
        model._post_build()


def note_state_in_variables(model: KerasModel) -> None:
    """Marks the state of a model as stored in its variables, and nowhere else."""
    model._jax_state = None
    model._jax_state_synced = True


def replace_distribute_data(function: Callable[[Any], Any]) -> None:
    """Makes Keras call ``function`` with each batch of ``train_on_batch`` and similar methods."""
    trainer._distribute_data = function


jit: Callable[..., Callable[..., Any]] = trainer.jit
"""Compiles a step of a model without a strategy."""


def replace_jit(function: Callable[..., Callable[..., Any]]) -> None:
    """Makes Keras call ``function`` to compile the steps of a model without a strategy."""
    trainer.jit = function


distribute_data: Callable[[Any], Any] = trainer._distribute_data
"""Places a batch on the devices."""


def initial_epoch(model: KerasModel) -> int | None:
    """Returns the initial epoch of ``fit`` that a callback has set."""
    epoch: int | None = model._initial_epoch
    return epoch


def set_initial_epoch(model: KerasModel, epoch: int | None) -> None:
    """Sets the initial epoch of ``fit``."""
    model._initial_epoch = epoch
