"""Builds Keras optimizers: also the one that a function carries to workers, which create no variables."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import keras

from stratagem._src.integrations.keras.keras_internals import (
    OPTIMIZER,
    KerasOptimizer,
    KerasVariable,
)
from stratagem._src.integrations.keras.owner_scope import owner_scope
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.integrations.keras.remote_apply import is_remote

__all__ = ["build_carried_optimizer", "build_optimizer"]

_lock = threading.RLock()  # reentrant: a signal handler may interrupt its holder


def build_optimizer(optimizer: KerasOptimizer, variables: list[KerasVariable]) -> None:
    """Builds an optimizer as its first step does, in the scope of its strategy."""
    with owner_scope(optimizer), keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)


def build_carried_optimizer(carried: Sequence[Any]) -> bool:
    """Builds the optimizer of a function that is sent to workers, so that they share its slots.

    It is built with all variables on servers that the function carries and that can be trained. With
    several optimizers it is not known which variables each of them trains: they stay as they are.

    Args:
        carried: The Keras objects that the function carries.

    Returns:
        Whether it was built now.
    """
    optimizers = [obj for obj in carried if isinstance(obj, OPTIMIZER)]
    if len(optimizers) != 1:
        return False
    optimizer = optimizers[0]
    variables = _trainable(carried)
    if not variables or not all(map(is_remote, (*variables, *optimizer.variables))):
        return False
    with _lock:
        if optimizer.built:
            return False
        build_optimizer(optimizer, variables)
        return True


def _trainable(carried: Sequence[Any]) -> list[KerasVariable]:
    """Returns the trainable variables, those of models first and in the order of the model."""
    found: dict[int, KerasVariable] = {}
    for obj in carried:
        if isinstance(obj, keras.Layer):
            found.update((id(v), v) for v in obj.trainable_variables)
    for obj in carried:
        if isinstance(obj, PlacedVariable) and obj.trainable:
            found.setdefault(id(obj), obj)
    return list(found.values())
