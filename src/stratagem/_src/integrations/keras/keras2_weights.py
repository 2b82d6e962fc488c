"""``model.save_weights(path)`` and ``load_weights(path)`` with any path, as in Keras 2.

Keras 3 writes weights to names in ``.weights.h5`` only. The file of another path gets this ending.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import keras

from stratagem._src.core.types import PathLike
from stratagem._src.integrations.keras.keras_internals import Argument, KerasModel

__all__ = ["save_weights_at_any_path", "weights_file"]

_ENDINGS = (".weights.h5", ".weights.json")
_SAVE, _LOAD = keras.Model.save_weights, keras.Model.load_weights


def save_weights_at_any_path() -> None:
    """Makes models save and load weights at paths without an ending of Keras 3."""
    keras.Model.save_weights = _save_weights
    keras.Model.load_weights = _load_weights


def weights_file(filepath: PathLike) -> str:
    """Returns the name of the file with the weights of a path.

    >>> weights_file("ckpt_{epoch}"), weights_file("last.weights.h5")
    ('ckpt_{epoch}.weights.h5', 'last.weights.h5')
    """
    path = os.fspath(filepath)
    return path if path.endswith(_ENDINGS) else f"{path}{_ENDINGS[0]}"


@functools.wraps(_SAVE)
def _save_weights(
    model: KerasModel,
    filepath: PathLike,
    overwrite: bool = True,
    max_shard_size: float | None = None,
    *,
    save_format: str | None = None,
    options: Argument = None,
) -> None:
    _SAVE(model, weights_file(filepath), overwrite=overwrite, max_shard_size=max_shard_size)


@functools.wraps(_LOAD)
def _load_weights(
    model: KerasModel, filepath: PathLike, *args: Argument, **kwargs: Argument
) -> Any:
    written = weights_file(filepath)
    # A file of another kind, such as one of Keras 2, comes first.
    found = written if os.path.exists(written) and not os.path.exists(filepath) else filepath
    return _LOAD(model, found, *args, **kwargs)
