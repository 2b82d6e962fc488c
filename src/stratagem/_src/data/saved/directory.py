"""The directory of a saved dataset: its layout, atomic commit and integrity checks.

::

    path/
      dataset.json       the description; replacing it atomically replaces the dataset
      run-<number>/      the files of one save
        00000.records    the elements of a shard, in blocks, as TFRecords with checksums
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google_crc32c import value as crc32c

from stratagem._src.core.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem._src.data.saved.spec_json import spec_from_json, spec_to_json

__all__ = ["SavedDataset", "SavedShard", "check_free", "commit", "new_run", "read_saved"]

_FORMAT = "stratagem dataset"
_VERSION = 1
_DESCRIPTION = "dataset.json"
_RUN = re.compile(r"run-[0-9a-f]{16}")
_SHARD = re.compile(r"[0-9]{5,}\.records")


@dataclass(frozen=True)
class SavedShard:
    """One file of a saved dataset.

    Attributes:
        file: Its name in the directory of the run.
        num_elements: The number of its elements.
        num_bytes: Its size.
    """

    file: str
    num_elements: int
    num_bytes: int


@dataclass(frozen=True)
class SavedDataset:
    """The contents of a directory.

    Attributes:
        run: The directory of its files.
        element_spec: The nest of specs of its elements.
        compression: ``""`` or ``"GZIP"``.
        shards: Its files.
    """

    run: Path
    element_spec: Any
    compression: str
    shards: tuple[SavedShard, ...]


def check_free(path: Path) -> None:
    """Checks that a dataset can be saved at ``path``: it contains nothing but a saved dataset.

    Raises:
        InvalidArgumentError: If it contains anything else.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise InvalidArgumentError(f"A dataset is saved in a directory, but {path} is a file.")
    unexpected = [
        entry.name
        for entry in path.iterdir()
        if entry.name != _DESCRIPTION and not _RUN.fullmatch(entry.name)
    ]
    if unexpected:
        raise InvalidArgumentError(
            f"{path} contains other files than a saved dataset: {', '.join(sorted(unexpected)[:3])}. "
            "Save to an empty or new directory."
        )
    if (path / _DESCRIPTION).exists():
        _run_of(path)


def new_run(path: Path) -> Path:
    """Returns a new directory for the files of one save."""
    run = path / f"run-{secrets.token_hex(8)}"
    run.mkdir(parents=True)
    return run


def commit(saved: SavedDataset, *, replace: bool) -> None:
    """Makes a complete save the current dataset, and removes the previous one.

    Args:
        saved: The save, whose files are complete.
        replace: Whether it replaces an existing dataset; otherwise an existing one stays, and this save is
            removed.
    """
    path = saved.run.parent
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "run": saved.run.name,
        "compression": saved.compression,
        "element_spec": spec_to_json(saved.element_spec),
        "shards": [asdict(shard) for shard in saved.shards],
    }
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=1)
    draft = saved.run / _DESCRIPTION
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if not replace and not _create_if_absent(draft, path / _DESCRIPTION):
        shutil.rmtree(saved.run)
        return
    before = _run_of(path)
    draft.replace(path / _DESCRIPTION)
    _sync_directory(path)
    if before is not None and before != saved.run:
        shutil.rmtree(before, ignore_errors=True)


def _create_if_absent(draft: Path, description: Path) -> bool:
    """Creates the description atomically; returns false if there is one already."""
    try:
        os.link(draft, description)
    except FileExistsError:
        return False
    except OSError:
        # The file system has no hard links: of two saves that finish at the same time, the later one wins.
        return not description.exists()
    return True


def _sync_directory(path: Path) -> None:
    """Makes a rename durable, so that a crash cannot lose it after the old files are removed."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _run_of(path: Path) -> Path | None:
    """Returns the run directory of the current dataset; ``None`` if there is none or it is corrupt."""
    try:
        return read_saved(path).run
    except (NotFoundError, DataLossError):
        return None


def read_saved(path: Path) -> SavedDataset:
    """Returns what is saved at ``path``.

    Raises:
        NotFoundError: If there is no dataset.
        InvalidArgumentError: If there is something else.
        DataLossError: If it is incomplete or corrupt.
    """
    file = path / _DESCRIPTION
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise _not_found_error(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataLossError(f"{file} cannot be read: {error}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataLossError(f"{file} is corrupt: {error}. Save the dataset again.") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InvalidArgumentError(f"{file} does not describe a dataset that save() wrote.")
    if content.get("version") != _VERSION:
        raise InvalidArgumentError(
            f"{file} has format version {content.get('version')!r}, but this program reads {_VERSION}. "
            "Use the version of stratagem that saved it."
        )
    if content.pop("checksum", None) != _checksum(content):
        raise DataLossError(f"{file}: its checksum does not match. Save the dataset again.")
    return _checked(path, content)


def _checked(path: Path, content: dict[str, Any]) -> SavedDataset:
    shards = tuple(SavedShard(**shard) for shard in content["shards"])
    names = [(_RUN, content["run"]), *((_SHARD, shard.file) for shard in shards)]
    for pattern, name in names:
        if not pattern.fullmatch(name):
            raise DataLossError(f"{path / _DESCRIPTION} names {name!r}, which save() never writes.")
    run = path / content["run"]
    for shard in shards:
        found = (run / shard.file).stat().st_size if (run / shard.file).exists() else None
        if found != shard.num_bytes:
            state = "is missing" if found is None else f"has {found} bytes"
            raise DataLossError(
                f"{run / shard.file} {state}, but had {shard.num_bytes} bytes when it was saved. Save the "
                "dataset again."
            )
    spec = spec_from_json(content["element_spec"])
    return SavedDataset(run, spec, content["compression"], shards)


def _checksum(content: dict[str, Any]) -> int:
    return int(crc32c(json.dumps(content, sort_keys=True).encode()))


def _not_found_error(path: Path) -> NotFoundError:
    if not path.exists():
        return NotFoundError(f"There is no saved dataset at {path}.")
    if (path / "dataset_spec.pb").exists():
        return NotFoundError(
            f"{path} was saved by tf.data, in a format that only TensorFlow reads. Load it with tf.data "
            "and pass that dataset on, or write TFRecords."
        )
    if any(_RUN.fullmatch(entry.name) for entry in path.iterdir()):
        return NotFoundError(f"There is no complete dataset at {path}: a save did not finish.")
    return NotFoundError(f"There is no saved dataset at {path}: it has no {_DESCRIPTION}.")
