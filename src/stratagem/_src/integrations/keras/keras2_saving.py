"""``model.save(path)`` in a directory, as in Keras 2, and what to use in place of a SavedModel."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import logging
import os
import shutil
from typing import Any

import keras

from stratagem._src.core.errors import MissingExtraError
from stratagem._src.core.io_options import LoadOptions, SaveOptions
from stratagem._src.integrations.keras.keras2_weights import save_weights_at_any_path, weights_file
from stratagem._src.integrations.keras.keras_internals import Argument, KerasModel, KerasObject

__all__ = ["save_in_directories"]

_logger = logging.getLogger("stratagem")

_SAVE, _EXPORT = keras.Model.save, keras.Model.export
_LOAD = keras.saving.load_model


def save_in_directories() -> None:
    """Makes ``model.save(path)`` without an extension save a directory, as in Keras 2.

    Keras 3 rejects such a path. The directory has the files of a ``.keras`` archive; ``load_model`` reads
    it.
    """
    keras.Model.save = _save
    keras.Model.export = _export
    keras.callbacks.ModelCheckpoint.__init__ = _init_model_checkpoint
    keras.saving.load_model = keras.models.load_model = _load
    save_weights_at_any_path()


@functools.wraps(_SAVE)
def _save(
    model: KerasModel,
    filepath: Argument,
    overwrite: bool = True,
    zipped: bool | None = None,
    *,
    options: SaveOptions | None = None,
    **kwargs: Argument,
) -> None:
    is_directory = isinstance(filepath, (str, os.PathLike)) and not os.path.splitext(filepath)[1]
    if is_directory and zipped is None and kwargs.get("save_format") in (None, "tf"):
        if kwargs.pop("save_format", None):
            _warn_of_format()
        zipped = False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Otherwise saved_model.load() would find the functions and weights of an older model here.
            os.remove(os.path.join(filepath, "saved_model.json"))
        if overwrite and os.path.exists(os.path.join(filepath, "config.json")):
            # Keras fails if an older model left this directory, because it creates it.
            shutil.rmtree(os.path.join(filepath, "assets"), ignore_errors=True)
    _SAVE(model, filepath, overwrite=overwrite, zipped=zipped, **kwargs)


@functools.cache
def _warn_of_format() -> None:
    _logger.warning(
        "model.save(path, save_format='tf') writes a directory for keras.models.load_model, not a "
        "SavedModel. For inference without Keras, call sg.saved_model.save(model, path): see "
        "docs/saved_models.md."
    )


@functools.wraps(_EXPORT)
def _export(
    model: KerasModel,
    filepath: Argument,
    format: str = "tf_saved_model",
    *args: Argument,
    **kwargs: Argument,
) -> Any:
    """Exports with Keras, which needs TensorFlow to write a SavedModel."""
    if format == "tf_saved_model" and importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError(
            "model.export writes a SavedModel of TensorFlow, which is not installed. Call "
            "sg.saved_model.save(model, path): its programs load with sg.saved_model.load, or with JAX "
            "alone (docs/saved_models.md)."
        )
    return _EXPORT(model, filepath, format, *args, **kwargs)


_INIT_MODEL_CHECKPOINT = keras.callbacks.ModelCheckpoint.__init__


@functools.wraps(_INIT_MODEL_CHECKPOINT)
def _init_model_checkpoint(
    callback: KerasObject, filepath: Argument, *args: Argument, **kwargs: Argument
) -> None:
    given = inspect.signature(_INIT_MODEL_CHECKPOINT).bind(callback, filepath, *args, **kwargs)
    path = os.fspath(filepath)
    # Placeholders such as {loss:.2f} may put a dot into the name.
    is_directory = "." not in os.path.basename(path)
    if given.arguments.get("save_weights_only"):
        _INIT_MODEL_CHECKPOINT(callback, weights_file(path), *args, **kwargs)
        callback.filepath = path
        return
    if not is_directory:
        _INIT_MODEL_CHECKPOINT(callback, filepath, *args, **kwargs)
        return
    _INIT_MODEL_CHECKPOINT(callback, f"{path}.keras", *args, **kwargs)
    callback.filepath = path


@functools.wraps(_LOAD)
def _load(
    filepath: Argument, *args: Argument, options: LoadOptions | None = None, **kwargs: Argument
) -> Any:
    return _LOAD(filepath, *args, **kwargs)
