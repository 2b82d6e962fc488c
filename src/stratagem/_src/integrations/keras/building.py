"""Layers that are built when they are first called, by one of the replicas for all."""

from __future__ import annotations

from typing import Any

from stratagem._src.integrations.keras.keras_internals import MAYBE_BUILD
from stratagem._src.integrations.keras.replicas import eager_replica

__all__ = ["maybe_build"]


def maybe_build(layer: Any, call_spec: Any) -> None:
    """Takes the place of ``Layer._maybe_build``."""
    replica = None if layer.built else eager_replica()
    if replica is None:
        MAYBE_BUILD(layer, call_spec)
        return
    # Each replica comes here before any of them has built it.
    replica.merge_call(lambda _: MAYBE_BUILD(layer, call_spec))
