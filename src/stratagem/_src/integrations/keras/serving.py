"""``serving_function``: the inference function of a Keras model, for export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["serving_function"]


def serving_function(model: keras.Model) -> tuple[Callable[..., Any], list[TensorSpec]]:
    """Returns the inference function of a model, and the specs of its inputs.

    Raises:
        InvalidArgumentError: If its inputs are unknown.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise InvalidArgumentError(
            f"Model {model.name!r} must have known inputs to be saved. Build it from keras.Input(...), or "
            "pass save() signatures=serve, where serve is a function with an input_signature that calls "
            "model(x, training=False)."
        )

    def serve(*values: PyTree) -> Any:
        return model(values[0] if len(values) == 1 else list(values), training=False)

    return serve, [TensorSpec(one.shape, one.dtype, one.name) for one in inputs]
