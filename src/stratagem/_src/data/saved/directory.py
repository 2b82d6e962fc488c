"""The directory of a saved dataset: which files are in it, and that they are whole.

::

    path/
      dataset.json       what is here; whoever replaces it replaces the dataset, at once
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
        num_elements: How many elements are in it.
        num_bytes: How long it is.
    """

    file: str
    num_elements: int
    num_bytes: int


@dataclass(frozen=True)
class SavedDataset:
    """What a directory holds.

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
    """Checks that a dataset may be saved at ``path``: it holds nothing else.

    Raises:
        InvalidArgumentError: If it does.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise InvalidArgumentError(f"A dataset is saved in a directory, and {path} is a file.")
    strange = [
        entry.name
        for entry in path.iterdir()
        if entry.name != _DESCRIPTION and not _RUN.fullmatch(entry.name)
    ]
    if strange:
        raise InvalidArgumentError(
            f"{path} holds something other than a saved dataset: {', '.join(sorted(strange)[:3])}. "
            "Save to a directory of its own."
        )
    if (path / _DESCRIPTION).exists():
        _run_of(path)


def new_run(path: Path) -> Path:
    """Returns a new directory for the files of one save."""
    run = path / f"run-{secrets.token_hex(8)}"
    run.mkdir(parents=True)
    return run


def commit(saved: SavedDataset, *, replace: bool) -> None:
    """Makes a complete save the one that is read; what was there before goes.

    Args:
        saved: The save, whose files are complete.
        replace: Whether it takes the place of another; else it goes itself if there is one.
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
    if not replace and not _appears(draft, path / _DESCRIPTION):
        shutil.rmtree(saved.run)
        return
    before = _run_of(path)
    draft.replace(path / _DESCRIPTION)
    _sync_directory(path)
    if before is not None and before != saved.run:
        shutil.rmtree(before, ignore_errors=True)


def _appears(draft: Path, description: Path) -> bool:
    """Returns whether a description is the first in its place, and not only nearly so."""
    try:
        os.link(draft, description)
    except FileExistsError:
        return False
    except OSError:
        # A file system without links: of two that end at the same time, the later one stays.
        return not description.exists()
    return True


def _sync_directory(path: Path) -> None:
    """Makes sure that a change of names outlives the machine before what was there is removed."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _run_of(path: Path) -> Path | None:
    """Returns the files of the dataset that is there; of a broken one they are not known."""
    try:
        return read_saved(path).run
    except (NotFoundError, DataLossError):
        return None


def read_saved(path: Path) -> SavedDataset:
    """Returns what is saved at ``path``.

    Raises:
        NotFoundError: If there is no dataset.
        InvalidArgumentError: If there is something else.
        DataLossError: If it is not whole.
    """
    file = path / _DESCRIPTION
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise _none_at(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataLossError(f"{file} cannot be read: {error}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataLossError(f"{file} is not whole: {error}. Save the dataset again.") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InvalidArgumentError(f"{file} does not describe a dataset that save() wrote.")
    if content.get("version") != _VERSION:
        raise InvalidArgumentError(
            f"{file} is of version {content.get('version')!r}, and this program reads {_VERSION}. "
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
            state = "is gone" if found is None else f"has {found} bytes"
            raise DataLossError(
                f"{run / shard.file} {state}, and had {shard.num_bytes} when it was saved. Save the "
                "dataset again."
            )
    spec = spec_from_json(content["element_spec"])
    return SavedDataset(run, spec, content["compression"], shards)


def _checksum(content: dict[str, Any]) -> int:
    return int(crc32c(json.dumps(content, sort_keys=True).encode()))


def _none_at(path: Path) -> NotFoundError:
    if not path.exists():
        return NotFoundError(f"There is no saved dataset at {path}.")
    if (path / "dataset_spec.pb").exists():
        return NotFoundError(
            f"{path} was saved by tf.data, whose files only TensorFlow reads. Load it there, and pass "
            "the dataset on as it is, or write TFRecords."
        )
    if any(_RUN.fullmatch(entry.name) for entry in path.iterdir()):
        return NotFoundError(f"There is no complete dataset at {path}: a save there did not end.")
    return NotFoundError(f"There is no saved dataset at {path}: it has no {_DESCRIPTION}.")
