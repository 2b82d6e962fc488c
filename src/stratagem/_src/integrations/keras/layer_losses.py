"""What layers add by ``add_loss``, kept apart for each replica and each trace."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import (
    ADD_LOSS,
    CLEAR_LOSSES,
    OWN_LOSSES,
    in_stateless_scope,
)
from stratagem._src.variables import access as state

__all__ = ["add_loss", "clear_losses", "own_losses"]

# From a trace or a replica to what its layers have added: it ends with them, and tracers with it.
_added: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, list[Any]]]
_added = weakref.WeakKeyDictionary()


def add_loss(layer: Any, loss: Any) -> None:
    """Takes the place of ``Layer.add_loss``."""
    added = _added_here()
    if added is None:
        ADD_LOSS(layer, loss)
    else:
        added.setdefault(layer, []).extend(keras.tree.flatten(loss))


def own_losses(layer: Any) -> list[Any]:
    """Takes the place of ``Layer._get_own_losses``."""
    added = _added_here()
    return OWN_LOSSES(layer) if added is None else list(added.get(layer, ()))


def clear_losses(layer: Any) -> None:
    """Takes the place of ``Layer._clear_losses``."""
    added = _added_here()
    if added is None:
        CLEAR_LOSSES(layer)
        return
    for part in layer._flatten_layers():
        added.pop(part, None)


def _added_here() -> weakref.WeakKeyDictionary[Any, list[Any]] | None:
    if in_stateless_scope():
        return None
    place: Any = state.current_frame()
    if place is None and context.has_strategy():
        place = context.get_replica_context()
    if place is None:
        return None
    return _added.setdefault(place, weakref.WeakKeyDictionary())
