"""``model.save(path)`` where the path has no extension: a directory, as in Keras 2."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from typing import Any

import keras

from stratagem._src.core.io_options import LoadOptions, SaveOptions

__all__ = ["save_in_directories"]

_SAVE = keras.Model.save
_LOAD = keras.saving.load_model


def save_in_directories() -> None:
    """Has models saved in a directory where Keras 3 refuses a path without an extension.

    What is in it is Keras 3's: the files of a ``.keras`` archive, which ``load_model`` reads.
    """
    keras.Model.save = _save
    keras.saving.load_model = keras.models.load_model = _load


@functools.wraps(_SAVE)
def _save(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    zipped: bool | None = None,
    *,
    options: SaveOptions | None = None,
    **kwargs: Any,
) -> None:
    is_directory = isinstance(filepath, (str, os.PathLike)) and not os.path.splitext(filepath)[1]
    if is_directory and zipped is None and kwargs.get("save_format") in (None, "tf"):
        kwargs.pop("save_format", None)
        zipped = False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Otherwise saved_model.load() would find the older model's functions and weights here.
            os.remove(os.path.join(filepath, "saved_model.json"))
        if overwrite and os.path.exists(os.path.join(filepath, "config.json")):
            # Keras fails where an older model has this directory, which it would make.
            shutil.rmtree(os.path.join(filepath, "assets"), ignore_errors=True)
    _SAVE(model, filepath, overwrite=overwrite, zipped=zipped, **kwargs)


@functools.wraps(_LOAD)
def _load(filepath: Any, *args: Any, options: LoadOptions | None = None, **kwargs: Any) -> Any:
    return _LOAD(filepath, *args, **kwargs)
