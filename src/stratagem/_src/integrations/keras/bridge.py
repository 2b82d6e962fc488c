"""Patches Keras after it is imported, so that its objects use the current strategy."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import COMMON_VARIABLE, Argument
from stratagem._src.integrations.keras.loader import check_backend

__all__ = ["bridge"]


def bridge() -> None:
    """Makes Keras use variables of the current strategy, and raise errors where it cannot."""
    if keras.config.backend() == "jax" and not keras.config.is_nnx_enabled():
        # Imported here, because it needs the JAX backend.
        from stratagem._src.integrations.keras.jax_bridge import bridge_jax

        bridge_jax()
    else:
        COMMON_VARIABLE.__new__ = _refuse_in_scope


def _refuse_in_scope(cls: type, *args: Argument, **kwargs: Argument) -> Any:
    if context.has_strategy():
        check_backend(keras)
        raise UnsupportedError(
            "Under strategies Keras must keep its state in variables of the strategy, but "
            "KERAS_NNX_ENABLED makes it use Flax NNX variables. Unset KERAS_NNX_ENABLED."
        )
    return object.__new__(cls)
