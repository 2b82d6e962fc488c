"""``HostLayer``: a Keras layer that computes on the host with NumPy, for strings and vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.data.dataset import Dataset
from stratagem._src.integrations.keras.keras_internals import Argument, KerasModel, run_graph
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = ["HostLayer", "batches_of", "encode", "has_strings", "run_on_host", "text_of"]

OUTPUT_MODES = ("int", "one_hot", "multi_hot", "count")


class HostLayer(keras.Layer):  # type: ignore[misc]
    """A layer whose call takes and returns host arrays; use it in ``Dataset.map``.

    It is also a part of functional models whose inputs are strings: these run on the host too.
    """

    def __call__(self, inputs: PyTree, *args: Argument, **kwargs: Argument) -> Any:
        """Computes on the host; with a ``keras.Input``, the layer becomes part of a model."""
        if isinstance(inputs, keras.KerasTensor):
            return super().__call__(inputs, *args, **kwargs)
        if is_tracer(inputs):
            raise InvalidArgumentError(
                f"{type(self).__name__} looks up values on the host, but its input is traced by a compiled "
                "function or a training step. Call it in Dataset.map, before the data reach the model."
            )
        return HostTensor.of(self.call(np.asarray(inputs)))

    def compute_output_spec(self, inputs: PyTree, *args: Argument, **kwargs: Argument) -> Any:
        """Returns the symbolic result."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.output_dtype)

    @property
    def output_dtype(self) -> str:
        """The dtype of results."""
        return "int64" if self.output_mode == "int" else "float32"


def text_of(value: object) -> str:
    """Returns a string of any kind as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def batches_of(data: PyTree) -> Iterator[np.ndarray[Any, Any]]:
    """Yields the arrays of what ``adapt`` takes: an array, a list, or a dataset."""
    if isinstance(data, Dataset):
        for element in data:
            yield np.asarray(element[0] if isinstance(element, tuple) else element)
    else:
        yield np.asarray(data)


def encode(
    indices: np.ndarray[Any, Any], mode: str, depth: int, weights: ArrayLike = None
) -> np.ndarray[Any, Any]:
    """Returns indices in an output mode of Keras.

    Args:
        indices: The indices. Negative ones count nothing.
        mode: ``"int"``, ``"one_hot"``, ``"multi_hot"``, ``"count"`` or ``"tf_idf"``.
        depth: The number of different indices.
        weights: The weight of each index for ``"tf_idf"``.
    """
    if mode == "int":
        return indices.astype(np.int64)
    if mode == "one_hot":
        squeezed = indices[..., 0] if indices.ndim and indices.shape[-1] == 1 else indices
        return (squeezed[..., None] == np.arange(depth)).astype(np.float32)
    counts = (indices[..., None] == np.arange(depth)).sum(-2 if indices.ndim else 0)
    if mode == "multi_hot":
        return (counts > 0).astype(np.float32)
    return (counts * (1.0 if weights is None else np.asarray(weights))).astype(np.float32)


def has_strings(inputs: PyTree) -> bool:
    """Returns whether arrays of strings are among the inputs of a layer."""
    leaves = jax.tree.leaves(inputs)
    return any(isinstance(leaf, (np.ndarray, str, bytes)) and _is_text(leaf) for leaf in leaves)


def _is_text(leaf: ArrayLike) -> bool:
    return isinstance(leaf, (str, bytes)) or leaf.dtype.kind in "SUO"


def run_on_host(model: KerasModel, inputs: PyTree) -> Any:
    """Calls the layers of a functional model one after the other, with host arrays."""
    return run_graph(model, keras.tree.map_structure(HostTensor.of, inputs))
