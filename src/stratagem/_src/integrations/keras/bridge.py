"""What is changed in Keras, once it is loaded, so that its objects know strategies."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.door import check_backend
from stratagem._src.integrations.keras.keras_internals import COMMON_VARIABLE

__all__ = ["bridge"]


def bridge() -> None:
    """Makes Keras use variables of the current strategy, and refuse where it cannot."""
    if keras.config.backend() == "jax" and not keras.config.is_nnx_enabled():
        # Imported when used: it needs the backend.
        from stratagem._src.integrations.keras.jax_bridge import bridge_jax

        bridge_jax()
    else:
        COMMON_VARIABLE.__new__ = _refuse_in_scope


def _refuse_in_scope(cls: type, *args: Any, **kwargs: Any) -> Any:
    if context.has_strategy():
        check_backend(keras)
        raise UnsupportedError(
            "Under strategies the state of Keras is in variables of the strategy, but Keras is told to "
            "keep it in those of Flax NNX. Unset KERAS_NNX_ENABLED."
        )
    return object.__new__(cls)
