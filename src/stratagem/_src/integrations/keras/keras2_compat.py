"""Compatibility with programs for ``tf.keras``: names of Keras 2, TensorBoard, layers of strings."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np

from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.dataset_creator import DatasetCreator
from stratagem._src.integrations.keras.host_layer import batches_of
from stratagem._src.integrations.keras.keras_internals import (
    DTYPE_NAMES,
    OPTIMIZER,
    Argument,
    KerasModel,
    KerasObject,
)
from stratagem._src.integrations.keras.lookup_layers import Hashing, IntegerLookup, StringLookup
from stratagem._src.integrations.keras.model_evaluator import ModelEvaluator
from stratagem._src.integrations.keras.serving import input_specs
from stratagem._src.integrations.keras.synchronized_normalization import (
    SyncBatchNormalization,
    synchronize_batch_normalization,
)
from stratagem._src.integrations.keras.text_vectorization import TextVectorization
from stratagem._src.telemetry.summary.recording import histogram, image, scalar
from stratagem._src.telemetry.summary.recording_state import record_if
from stratagem._src.telemetry.summary.writer import create_file_writer
from stratagem._src.tensorflow_api.gradient_tape import GradientTape

__all__ = [
    "install_keras2_names",
    "look_up_without_tensorflow",
    "write_without_tensorflow",
]

# The modules of ``tf.keras`` that have more names than those of ``keras``. Keras itself has the table.
_MODULES = ("layers", "losses", "metrics", "preprocessing")
_OPTIMIZERS = ("Adagrad", "Adam", "Ftrl", "Optimizer", "RMSprop", "SGD")


def install_keras2_names() -> None:
    """Adds ``losses.Reduction``, ``Metric.reset_states``, ``optimizers.legacy.Adam`` and similar names.

    Existing names of ``keras`` are unchanged.
    """
    for name in _MODULES:
        module: Any = getattr(keras, name)
        module.__getattr__ = _found_in_tf_keras(module, f"keras._tf_keras.keras.{name}")
    keras.backend.__getattr__ = _backend_function
    for name in _OPTIMIZERS:
        # In Keras 3 these raise.
        setattr(keras.optimizers.legacy, name, getattr(keras.optimizers, name))
    _take_lists("sparse_categorical_crossentropy")
    keras.Metric.reset_states = _reset_states
    keras.Metric.add_weight = _name_first(keras.Metric.add_weight)
    keras.Layer.add_weight = _name_first(keras.Layer.add_weight)
    keras.utils.experimental = SimpleNamespace(DatasetCreator=DatasetCreator)
    keras.utils.SidecarEvaluator = ModelEvaluator
    schedules = keras.optimizers.schedules
    keras.experimental = SimpleNamespace(
        CosineDecay=schedules.CosineDecay,
        CosineDecayRestarts=schedules.CosineDecayRestarts,
        SidecarEvaluator=ModelEvaluator,
    )
    keras.callbacks.experimental = SimpleNamespace(
        BackupAndRestore=keras.callbacks.BackupAndRestore
    )
    synchronize_batch_normalization()
    keras.layers.experimental = SimpleNamespace(
        EinsumDense=keras.layers.EinsumDense,
        SyncBatchNormalization=SyncBatchNormalization,
        preprocessing=keras.layers,
    )
    OPTIMIZER.__init__ = _init_optimizer
    OPTIMIZER.minimize = _minimize
    OPTIMIZER.lr = property(_learning_rate_of, _set_learning_rate)
    keras.Model.save_spec = _save_spec
    keras.Model.stop_training = False  # Keras 3 sets it in `fit` only, and not for custom loops
    # The dtype of strings, tf.string, is NumPy's object dtype.
    DTYPE_NAMES[np.dtype(object)] = "string"


def _found_in_tf_keras(module: ModuleType, fuller: str) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        # Python looks up optional dunder names; they do not justify loading the table.
        if not name.startswith("__"):
            table = importlib.import_module(fuller)
            if hasattr(table, name):
                return getattr(table, name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    return find


def _backend_function(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'keras.backend' has no attribute {name!r}")
    # A lazy import, like that of the table.
    from stratagem._src.integrations.keras.backend_functions import backend_function

    return backend_function(name)


_INIT_OPTIMIZER = OPTIMIZER.__init__


@functools.wraps(_INIT_OPTIMIZER)
def _init_optimizer(
    optimizer: KerasObject,
    learning_rate: Argument,
    *args: Argument,
    lr: float | None = None,
    decay: float | None = None,
    **kwargs: Argument,
) -> None:
    """Takes ``lr=`` and ``decay=`` as Keras 2 does; Keras 3 refuses the one and ignores the other."""
    if lr is not None:
        learning_rate = lr
    if decay:
        # lr / (1 + decay * step), as in Keras 2
        learning_rate = keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, decay)
    _INIT_OPTIMIZER(optimizer, learning_rate, *args, **kwargs)


def _minimize(
    optimizer: KerasObject,
    loss: Argument,
    var_list: Argument,
    grad_loss: Argument = None,
    name: str | None = None,
    tape: GradientTape | None = None,
) -> None:
    """Takes one step, as in Keras 2: ``loss`` is a function, or was computed in the block of ``tape``."""
    if callable(loss):
        with GradientTape() as tape:
            loss = loss()
    elif tape is None:
        raise ValueError("minimize needs a function without arguments as its loss, or a tape.")
    variables = var_list() if callable(var_list) else list(var_list)
    gradients = tape.gradient(loss, variables, grad_loss)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def _learning_rate_of(optimizer: KerasObject) -> Any:
    return optimizer.learning_rate


def _set_learning_rate(optimizer: KerasObject, learning_rate: Argument) -> None:
    optimizer.learning_rate = learning_rate


def _reset_states(self: KerasObject) -> None:
    """Calls ``reset_state``, its Keras 3 name."""
    self.reset_state()


def _take_lists(name: str) -> None:
    """Makes a function of ``keras.losses`` take lists, which Keras 3 asks for their shape."""
    loss = getattr(keras.losses, name)

    @functools.wraps(loss)
    def loss_of(y_true: Argument, y_pred: Argument, *args: Argument, **kwargs: Argument) -> Any:
        given = (
            y if hasattr(y, "shape") else keras.ops.convert_to_tensor(y) for y in (y_true, y_pred)
        )
        return loss(*given, *args, **kwargs)

    for module in (keras.losses, keras.metrics, sys.modules[loss.__module__]):
        setattr(module, name, loss_of)


def _name_first(add_weight: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an ``add_weight`` that also takes the name as its first argument, as that of Keras 2."""

    @functools.wraps(add_weight)
    def add(self: KerasObject, *args: Argument, **kwargs: Argument) -> Any:
        if args and isinstance(args[0], str):
            kwargs["name"], args = args[0], args[1:]
        return add_weight(self, *args, **kwargs)

    return add


def _save_spec(self: KerasModel, dynamic_batch: bool = True) -> tuple[Any, dict[str, Any]] | None:
    """Returns the specs of the arguments that it is saved with; ``None`` if it was not called yet."""
    specs = input_specs(self)
    if specs is None:
        return None
    return (specs[0] if len(specs) == 1 else specs,), {}


# The functions of tf.summary that the callback uses, except graph traces.
_OWN_SUMMARY = SimpleNamespace(
    create_file_writer=create_file_writer,
    histogram=histogram,
    image=image,
    record_if=record_if,
    scalar=scalar,
)


def write_without_tensorflow() -> None:
    """Makes ``keras.callbacks.TensorBoard`` use ``sg.summary`` if TensorFlow is not installed.

    It then writes no graph of the model, which only TensorFlow's summaries support.
    """
    if importlib.util.find_spec("tensorflow") is None:
        keras.callbacks.TensorBoard.summary = property(lambda callback: _OWN_SUMMARY)
        keras.callbacks.TensorBoard._write_keras_model_summary = _write_no_graph


def look_up_without_tensorflow() -> None:
    """Replaces the layers of strings and vocabularies, which Keras computes with TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        for kind in (StringLookup, IntegerLookup, Hashing, TextVectorization):
            setattr(keras.layers, kind.__name__, kind)
        keras.layers.Normalization.adapt = _adapt_normalization


_ADAPT = keras.layers.Normalization.adapt


@functools.wraps(_ADAPT)
def _adapt_normalization(layer: KerasObject, data: PyTree) -> None:
    """Replaces ``Normalization.adapt``, which needs TensorFlow for anything but arrays."""
    _ADAPT(layer, np.concatenate(list(batches_of(data))))


def _write_no_graph(callback: KerasObject) -> None:
    """Replaces the method that writes the model's layers as JSON."""
