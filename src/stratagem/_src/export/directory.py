"""The files of a saved model, which other programs can read with only JAX and NumPy.

::

    saved_model.json            the index
    weights.npz                 an array for each weight
    signatures/<name>.jax       a function of (weights, *arguments), serialized by jax.export
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.core.errors import DataLossError, NotFoundError
from stratagem._src.data.element_format import dtype_named
from stratagem._src.data.saved.spec_json import spec_from_json, spec_to_json

__all__ = [
    "SavedSignature",
    "SavedWeight",
    "is_keras_directory",
    "is_signature_name",
    "read_directory",
    "write_directory",
]

_INDEX = "saved_model.json"
_WEIGHTS = "weights.npz"
_FORMAT = 1
# A plain file name: it cannot lead outside the directory.
_SIGNATURE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def is_signature_name(name: str) -> bool:
    """Returns whether a name is valid for a signature.

    >>> from stratagem._src.export.directory import is_signature_name
    >>> is_signature_name("serving_default"), is_signature_name("../../outside")
    (True, False)
    """
    return _SIGNATURE_NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class SavedWeight:
    """One array, and whether it is trainable."""

    value: np.ndarray[Any, Any]
    trainable: bool


@dataclass(frozen=True)
class SavedSignature:
    """One function: the names and specs of its arguments, the names of its weights, and its program."""

    parameters: tuple[str, ...]
    specs: tuple[Any, ...]
    weights: tuple[str, ...]
    program: bytes


def write_directory(
    path: str | os.PathLike[str],
    weights: Mapping[str, SavedWeight],
    signatures: Mapping[str, SavedSignature],
) -> None:
    """Writes a directory, completely or not at all; replaces an existing one."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        _write(new, weights, signatures)
        new.chmod(0o755)  # mkdtemp creates it with mode 0700
        if final.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
            final.rename(old / final.name)
            new.rename(final)
            shutil.rmtree(old)
        else:
            new.rename(final)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write(
    directory: Path, weights: Mapping[str, SavedWeight], signatures: Mapping[str, SavedSignature]
) -> None:
    (directory / "signatures").mkdir()
    # NumPy files have no name for dtypes such as bfloat16: the index records them.
    arrays: dict[str, Any] = {name: weight.value for name, weight in weights.items()}
    with (directory / _WEIGHTS).open("wb") as file:
        np.savez(file, **arrays)
    for name, signature in signatures.items():
        (directory / "signatures" / f"{name}.jax").write_bytes(signature.program)
    index = {
        "format": _FORMAT,
        "weights": {
            name: {"dtype": weight.value.dtype.name, "trainable": weight.trainable}
            for name, weight in weights.items()
        },
        "signatures": {
            name: {
                "parameters": signature.parameters,
                "specs": [spec_to_json(spec) for spec in signature.specs],
                "weights": signature.weights,
            }
            for name, signature in signatures.items()
        },
    }
    (directory / _INDEX).write_text(json.dumps(index, indent=1))


def is_keras_directory(path: str | os.PathLike[str]) -> bool:
    """Returns whether ``save`` of a Keras model wrote a directory, rather than ``write_directory``."""
    directory = Path(path)
    return not (directory / _INDEX).exists() and all(
        (directory / name).is_file() for name in ("config.json", "metadata.json")
    )


def read_directory(
    path: str | os.PathLike[str],
) -> tuple[dict[str, SavedWeight], dict[str, SavedSignature]]:
    """Returns the weights and signatures of a directory.

    Raises:
        NotFoundError: If it does not contain a saved model.
        DataLossError: If a file is missing or corrupt.
    """
    directory = Path(path)
    if not (directory / _INDEX).is_file():
        raise NotFoundError(f"There is no saved model in {str(directory)!r}.")
    try:
        index = json.loads((directory / _INDEX).read_text())
        if index["format"] != _FORMAT:
            raise DataLossError(
                f"The saved model in {str(directory)!r} has format {index['format']}, written by a later "
                f"version of stratagem. This version reads format {_FORMAT}. Update stratagem."
            )
        for name in index["signatures"]:
            if not is_signature_name(name):
                raise DataLossError(
                    f"The saved model in {str(directory)!r} has a signature named {name!r}, which save() "
                    "never writes: its file would be outside the directory."
                )
        weights = _read_weights(directory, index["weights"])
        signatures = {
            name: SavedSignature(
                tuple(described["parameters"]),
                tuple(spec_from_json(spec) for spec in described["specs"]),
                tuple(map(str, described["weights"])),
                (directory / "signatures" / f"{name}.jax").read_bytes(),
            )
            for name, described in index["signatures"].items()
        }
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        zipfile.BadZipFile,
    ) as error:
        raise DataLossError(
            f"The saved model in {str(directory)!r} is corrupt: {error}. Save it again."
        ) from error
    return weights, signatures


def _read_weights(directory: Path, described: Mapping[str, Any]) -> dict[str, SavedWeight]:
    with np.load(directory / _WEIGHTS, allow_pickle=False) as arrays:
        return {
            name: SavedWeight(arrays[name].view(dtype_named(one["dtype"])), one["trainable"])
            for name, one in described.items()
        }
