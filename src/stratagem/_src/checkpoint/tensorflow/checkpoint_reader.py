"""``load_checkpoint``, ``list_variables`` and ``load_variable``: the tensors in a checkpoint, by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.checkpoint.async_save import wait_for_saves
from stratagem._src.checkpoint.format.checkpoint_path import checkpoint_path
from stratagem._src.checkpoint.format.reader import StoredTensors, open_stored_tensors
from stratagem._src.checkpoint.locating import latest_checkpoint
from stratagem._src.checkpoint.tensorflow.bundle import TensorBundle
from stratagem._src.checkpoint.tensorflow.h5_weights import H5Weights, is_h5_file
from stratagem._src.checkpoint.tensorflow.locations import find_prefix, is_tensorflow_checkpoint
from stratagem._src.core.errors import NotFoundError

__all__ = ["CheckpointReader", "list_variables", "load_checkpoint", "load_variable", "open_tensors"]


class CheckpointReader:
    """The tensors in a checkpoint by name, which ``load_checkpoint`` returns.

    Each is read from its file, and its checksum checked, when it is asked for.
    """

    def __init__(self, tensors: TensorBundle | H5Weights | StoredTensors) -> None:
        self._tensors = tensors

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Returns the shapes of all tensors by name."""
        return {name: list(shape) for name, shape in self._tensors.shapes.items()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype[Any]]:
        """Returns the NumPy dtypes of all tensors by name; that of strings is ``object``.

        Differs from TensorFlow: tensors of dtypes that only TensorFlow has (variants) are left out.
        """
        return {name: self._tensors.dtype(name) for name in self._tensors.readable_names()}

    def has_tensor(self, tensor_str: str) -> bool:
        """Returns whether there is a tensor with this name."""
        return tensor_str in self._tensors

    def get_tensor(self, tensor_str: str) -> Any:
        """Returns a tensor: a NumPy array, or a NumPy scalar or ``bytes`` for one without dimensions.

        Raises:
            NotFoundError: If there is no tensor with this name.
            DataLossError: If its file is corrupt.
        """
        return self._tensors.tensor(tensor_str).read()[()]


def load_checkpoint(ckpt_dir_or_file: str | os.PathLike[str]) -> CheckpointReader:
    """Opens a checkpoint: of ours, of Orbax, or of TensorFlow, without TensorFlow.

    It waits until a checkpoint that this process is saving is complete. In checkpoints of ours, tensors
    have the names that ``Checkpoint`` gives them, such as ``"model/w"``, and those of Keras objects are
    numbered: ``"model/0000"``. Of values that each worker has for itself, they are those of the first.

    Args:
        ckpt_dir_or_file: A path that ``Checkpoint.save`` returned; the prefix of TensorFlow's files, as
            ``"training/ckpt-5"``; a directory of checkpoints, for the latest one; a SavedModel's directory;
            or an ``.h5`` file with the weights of a Keras 2 model.

    Raises:
        NotFoundError: If there is no such checkpoint.
        DataLossError: If its index is corrupt.

    >>> import tempfile
    >>> import stratagem as sg
    >>> path = sg.train.Checkpoint(model={"w": sg.Variable([1.0, 2.0])}).save(tempfile.mkdtemp() + "/ckpt")
    >>> sg.train.load_checkpoint(path).get_tensor("model/w")
    array([1., 2.], dtype=float32)
    >>> path = "tests/unit/checkpoint/of_tensorflow/files/module/ckpt"  # written by TensorFlow
    >>> reader = sg.train.load_checkpoint(path)
    >>> reader.has_tensor("net/first/w/.ATTRIBUTES/VARIABLE_VALUE")
    True
    >>> reader.get_variable_to_dtype_map()["net/first/w/.ATTRIBUTES/VARIABLE_VALUE"]
    dtype('float32')
    """
    path = checkpoint_path(ckpt_dir_or_file)
    wait_for_saves(path.parent)
    latest = latest_checkpoint(str(path)) if path.is_dir() else None
    if latest is not None:
        path = checkpoint_path(latest)
    if isinstance(path, Path) and (is_tensorflow_checkpoint(path) or not path.is_dir()):
        return CheckpointReader(open_tensors(path))
    return CheckpointReader(open_stored_tensors(path))


def list_variables(ckpt_dir_or_file: str | os.PathLike[str]) -> list[tuple[str, list[int]]]:
    """Returns the names and shapes of all tensors in a checkpoint, sorted by name.

    The arguments and errors are those of ``load_checkpoint``.

    >>> import stratagem as sg
    >>> path = "tests/unit/checkpoint/of_tensorflow/files/partitioned/model.ckpt"
    >>> sg.train.list_variables(path)
    [('bias', [2]), ('net/embedding', [7, 2])]
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: str | os.PathLike[str], name: str) -> Any:
    """Returns a tensor of a checkpoint. See ``load_checkpoint`` and ``get_tensor``.

    Args:
        ckpt_dir_or_file: See ``load_checkpoint``.
        name: The tensor's name, with or without ``:0`` at its end.

    >>> import stratagem as sg
    >>> path = "tests/unit/checkpoint/of_tensorflow/files/partitioned/model.ckpt"
    >>> sg.train.load_variable(path, "bias")
    array([0.   , 0.125], dtype=float32)
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    return reader.get_tensor(name if reader.has_tensor(name) else name.removesuffix(":0"))


def open_tensors(path: Path) -> TensorBundle | H5Weights:
    """Opens a checkpoint in one of TensorFlow's formats."""
    if is_h5_file(path):
        return H5Weights(path)
    prefix = find_prefix(path)
    if prefix is not None:
        return TensorBundle(prefix)
    why = (
        "it is one file, of TensorFlow's V1 format or another" if path.is_file() else "no such file"
    )
    raise NotFoundError(
        f"There is no TensorFlow checkpoint at {path}: {why}. Give the path of the file {path.name}.index "
        "without .index, or a directory: of a Checkpoint of ours, of a SavedModel, or with a checkpoint "
        "file in it."
    )
