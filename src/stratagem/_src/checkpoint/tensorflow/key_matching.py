"""Matches objects with checkpoints that have no object graph: TensorFlow 1, and Keras weights in HDF5."""

from __future__ import annotations

from pathlib import Path

from stratagem._src.checkpoint.objects import COUNTER, CheckpointObjects
from stratagem._src.checkpoint.tensorflow.bundle import TensorBundle
from stratagem._src.checkpoint.tensorflow.h5_weights import H5Weights
from stratagem._src.checkpoint.tensorflow.keras_names import keras_layers
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.variables.foreign_variables import variable_of
from stratagem._src.variables.variable import Variable

__all__ = ["keys_by_layer", "keys_by_name"]


def keys_by_name(tensors: TensorBundle, objects: CheckpointObjects) -> dict[str, str]:
    """Returns the keys of tensors by our names, for those that have the same names.

    Of a Keras variable these are its path, with or without the name of its model.
    """
    found = {COUNTER: COUNTER} if COUNTER in tensors else {}
    for name in objects.keys:
        variable = objects.variables.get(name)
        candidates = [name] if variable is None else [name, *_names(variable)]
        key = next((one for one in candidates if one in tensors), None)
        if key is not None:
            found[name] = key
    return found


def _names(variable: Variable) -> list[str]:
    path = variable.name.removesuffix(":0")
    return [path, path.partition("/")[2]] if "/" in path else [path]


def keys_by_layer(
    weights: H5Weights, given: PyTree, objects: CheckpointObjects, path: Path
) -> dict[str, str]:
    """Returns the keys of the weights of a Keras model by our names, layer by layer in the model's order.

    Names of layers do not tell, because Keras numbers them as they come in a program.

    Raises:
        InvalidArgumentError: If not one built Keras model is given, or it has other layers.
    """
    models = [one for one in keras_layers(given) if hasattr(one, "layers")]
    if len(models) != 1 or objects.unbuilt:
        raise InvalidArgumentError(
            f"{path} has the weights of a Keras model: restore it into a Checkpoint with one model that "
            f"is built, got {len(models)} models, not built: {sorted(objects.unbuilt)}. Call model.build()."
        )
    layers = [
        [*layer.trainable_weights, *layer.non_trainable_weights]
        for layer in models[0].layers
        if layer.weights
    ]
    counts, saved = [len(layer) for layer in layers], [len(names) for names in weights.layers]
    if counts != saved:
        raise InvalidArgumentError(
            f"The model must have the layers that were saved to {path}, got {len(counts)} layers with "
            f"{counts} weights for {len(saved)} with {saved}. Create it as it was saved."
        )
    ours = {id(variable): name for name, variable in objects.variables.items()}
    return {
        ours[id(variable_of(weight))]: key
        for layer, names in zip(layers, weights.layers, strict=True)
        for weight, key in zip(layer, names, strict=True)
    }
