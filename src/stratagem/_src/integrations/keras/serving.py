"""A Keras model as a function to be saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["serving_function"]


def serving_function(model: keras.Model) -> tuple[Callable[..., Any], list[TensorSpec]]:
    """Returns what a model does for inference, and the specs of its inputs.

    Raises:
        InvalidArgumentError: If its inputs are not known.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise InvalidArgumentError(
            f"Model {model.name!r} does not say what its inputs are. Build it from keras.Input(...), or "
            "give save() signatures=serve, where serve is a function with an input_signature that calls "
            "model(x, training=False)."
        )

    def serve(*values: Any) -> Any:
        return model(values[0] if len(values) == 1 else list(values), training=False)

    return serve, [TensorSpec(one.shape, one.dtype, one.name) for one in inputs]
