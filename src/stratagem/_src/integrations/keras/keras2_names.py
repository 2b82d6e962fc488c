"""Names of Keras 2 that programs written for ``tf.keras`` use: each is what Keras 3 calls otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras

__all__ = ["install_keras2_names"]

# The modules of ``tf.keras`` that have more names than those of ``keras``. Keras itself keeps the table.
_MODULES = ("backend", "layers", "losses", "metrics", "preprocessing")
_OPTIMIZERS = ("Adagrad", "Adam", "Ftrl", "Optimizer", "RMSprop", "SGD")


def install_keras2_names() -> None:
    """Adds ``losses.Reduction``, ``Metric.reset_states``, ``optimizers.legacy.Adam`` and their like.

    A name that ``keras`` has stays what it is.
    """
    for name in _MODULES:
        module: Any = getattr(keras, name)
        module.__getattr__ = _found_in_tf_keras(module, f"keras._tf_keras.keras.{name}")
    for name in _OPTIMIZERS:
        # In Keras 3 these raise. Arguments that optimizers lost since, such as decay=, still do.
        setattr(keras.optimizers.legacy, name, getattr(keras.optimizers, name))
    keras.Metric.reset_states = _reset_states


def _found_in_tf_keras(module: ModuleType, fuller: str) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        # Python asks for dunder names that a module may lack; loading the table for them is a waste.
        if not name.startswith("__"):
            table = importlib.import_module(fuller)
            if hasattr(table, name):
                return getattr(table, name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    return find


def _reset_states(self: Any) -> None:
    """Does what ``reset_state`` does, which took its place."""
    self.reset_state()
