"""Layers that are built when they are first called, by one of the replicas for all."""

from __future__ import annotations

from typing import Any

from stratagem._src.integrations.keras.deferred_restore import restore_deferred
from stratagem._src.integrations.keras.keras_internals import MAYBE_BUILD
from stratagem._src.integrations.keras.model_strategy import adopt_new
from stratagem._src.integrations.keras.owner_scope import made_in, owner_scope
from stratagem._src.integrations.keras.replicas import eager_replica

__all__ = ["maybe_build"]


def maybe_build(layer: Any, call_spec: Any) -> None:
    """Takes the place of ``Layer._maybe_build``, which is called before each ``call``."""
    _build(layer, call_spec)
    restore_deferred(layer)


def _build(layer: Any, call_spec: Any) -> None:
    if layer.built:
        MAYBE_BUILD(layer, call_spec)
        return
    strategy, replica = made_in(layer), eager_replica()
    if strategy is not None:
        adopt_new(layer, strategy)
    if replica is None:
        with owner_scope(layer):
            MAYBE_BUILD(layer, call_spec)
        return
    # Each replica comes here before any of them has built it.
    replica.merge_call(lambda _: MAYBE_BUILD(layer, call_spec))
