"""``serving_functions``: the inference function of a Keras model, for export."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.integrations.keras.keras_internals import build_shapes_of

__all__ = ["input_specs", "serving_functions"]

_logger = logging.getLogger("stratagem")


def serving_functions(
    model: keras.Model,
) -> dict[str, tuple[Callable[..., Any], list[TensorSpec]]]:
    """Returns the inference function of a model, and the specs of its inputs; none if it was never called.

    Raises:
        InvalidArgumentError: If its inputs are unknown, though it is of layers or has weights.
    """
    specs = input_specs(model)
    if specs is None:
        if model.built or isinstance(model, keras.Sequential):
            raise InvalidArgumentError(
                f"Model {model.name!r} must have known inputs to be saved. Build it from keras.Input(...), "
                "or pass save() signatures=serve, where serve is a function with an input_signature that "
                "calls model(x, training=False)."
            )
        _logger.warning(
            "Model %r is saved without functions and weights: it has not been called yet, so its inputs "
            "are unknown.",
            model.name,
        )
        return {}

    def serve(*values: PyTree) -> Any:
        return model(values[0] if len(values) == 1 else list(values), training=False)

    return {"serving_default": (serve, specs)}


def input_specs(model: keras.Model) -> list[TensorSpec] | None:
    """Returns the specs of a model's inputs, with batches of any size; ``None`` if they are unknown."""
    inputs = getattr(model, "inputs", None)
    if inputs:
        return [TensorSpec(one.shape, one.dtype, one.name) for one in inputs]
    # The shape that a subclassed model was first called with, if it takes one array.
    shapes = list(build_shapes_of(model).values())
    if not model.built or len(shapes) != 1 or not _is_shape(shapes[0]):
        return None
    return [TensorSpec([None, *shapes[0][1:]], model.input_dtype)]


def _is_shape(value: object) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) > 0
        and all(size is None or isinstance(size, int) for size in value)
    )
