"""The private names of Keras that the trainer needs: the only file that knows them.

``tests/unit/integrations/test_keras_trainer_internals.py`` has a test for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras.src.backend.jax.trainer import JAXTrainer
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_data_adapter, data_adapter, py_dataset_adapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
from keras.src.trainers.trainer import Trainer

__all__ = [
    "ArrayDataAdapter",
    "DataAdapter",
    "JAXTrainer",
    "PyDatasetAdapter",
    "Trainer",
    "class_weight_to_sample_weights",
    "data_adapter_of",
    "forget_jax_state",
    "is_shuffled",
    "keep_value",
    "lost_its_value",
    "replace_data_adapter_of",
    "variables_of",
]

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
    return isinstance(adapter, PyDatasetAdapter) and adapter._shuffle


def variables_of(model: Any, part: str) -> Sequence[Any]:
    """Returns the variables of one part of the state that Keras takes through a step."""
    if part == "optimizer_variables":
        return model.optimizer.variables if getattr(model, "optimizer", None) is not None else ()
    return getattr(model, part)


def lost_its_value(variable: Any) -> bool:
    """Returns whether Keras, or a program, has taken a variable's array away."""
    value = variable._value
    return value is None or value.is_deleted()


def keep_value(variable: Any, value: Any) -> None:
    """Gives a variable an array, as it is."""
    variable._value = value


def forget_jax_state(model: Any) -> None:
    """Notes that the variables of a model hold its state, and nothing else does."""
    model._jax_state = None
    model._jax_state_synced = True
