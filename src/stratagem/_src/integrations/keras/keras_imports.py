"""Imports what a pickle refers to in Keras, with the JAX backend. It does not import Keras itself."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from stratagem._src.integrations.keras.loader import load_keras

__all__ = ["import_keras_module", "keras_attribute"]


def import_keras_module(name: str) -> Any:
    """Returns a module of Keras."""
    load_keras()
    return importlib.import_module(name)


def keras_attribute(module: str, name: str) -> Any:
    """Returns a class or function of Keras by its qualified name."""
    return functools.reduce(getattr, name.split("."), import_keras_module(module))
