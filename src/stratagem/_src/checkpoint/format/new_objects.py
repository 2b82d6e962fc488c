"""Checkpoints in object stores: published by one object, because nothing there can be renamed.

::

    ckpt-1/_METADATA                       written last: without it there is no checkpoint
    ckpt-1/_CHECKPOINT_METADATA            the save time
    ckpt-1/ocdbt.process_<token>/          the arrays; _METADATA names this directory
    ckpt-1/ocdbt.process_<token>/.unfinished   until it is published
    ckpt-1/manifest.ocdbt                  the same arrays, for Orbax
    ckpt-1/commit_success.txt              by which Orbax knows a complete checkpoint

A checkpoint that replaces another gets a directory of its own next to the old one's; ``_METADATA``,
a single object, switches from one to the other.
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
import uuid
from collections.abc import Mapping

from stratagem._src.checkpoint.format.array_store import MANIFEST_FILE, merge_parts, part_name
from stratagem._src.checkpoint.format.directories import NameTakenError
from stratagem._src.checkpoint.format.object_path import ObjectPath
from stratagem._src.checkpoint.format.tree_metadata import METADATA_FILE, store_named_in

__all__ = ["NewObjects", "are_visible", "remove_leftover_objects", "remove_objects"]

_UNFINISHED = ".unfinished"
_RESERVED = ".reserved"
_ORBAX_MARK = "commit_success.txt"
# A process that was killed cannot be told from one that is slow: no lock of a store notices its end.
_ABANDONED_AFTER_NS = 24 * 3600 * 10**9


class NewObjects:
    """A checkpoint in an object store that appears when it is complete; see ``NewDirectory``.

    Args:
        path: The final path.
        replace: Whether to replace an existing checkpoint.

    Attributes:
        path: The final path.
        hidden: The directory for the arrays.
        token: A unique token.
        store: The name of ``hidden``, for the metadata.

    Raises:
        NameTakenError: If the checkpoint exists, or another process is writing it.
    """

    def __init__(self, path: ObjectPath, *, replace: bool = False) -> None:
        self.path = path
        self.token = uuid.uuid4().hex
        self.hidden = path / part_name(self.token)
        self.store = self.hidden.name
        self._reserved = not replace
        if not replace and (
            path.is_dir() or not (path / _RESERVED).create(_mark(time.time_ns(), self.token))
        ):
            raise NameTakenError(errno.EEXIST, "it exists", str(path))
        self._is_pending = True
        (self.hidden / _UNFINISHED).write_bytes(_mark(time.time_ns(), self.token))

    def publish(self, files: Mapping[str, bytes], saved_ns: int) -> None:
        """Writes ``_METADATA`` and the other files: from then on it is the checkpoint at the path.

        Args:
            files: The contents of the metadata files.
            saved_ns: The save time, which is also in the files.
        """
        old = _replaced_objects(self.path)
        # The save time of a replaced checkpoint must not change before its contents do.
        names = sorted(
            files, key=METADATA_FILE.__eq__, reverse=(self.path / METADATA_FILE).exists()
        )
        (self.path / _ORBAX_MARK).unlink()
        # From here nothing is discarded: a write that fails because its answer was lost may have happened.
        self._is_pending = False
        for name in names:
            (self.path / name).write_bytes(files[name])
        (self.path / MANIFEST_FILE).unlink()
        if (self.hidden / MANIFEST_FILE).exists():
            merge_parts(self.path, [self.token])
        (self.path / _ORBAX_MARK).write_bytes(b"committed")
        (self.hidden / _UNFINISHED).unlink()
        (self.path / _RESERVED).unlink()
        for name in old:
            (self.path / name).unlink()

    def discard(self) -> None:
        """Removes the objects, if they are not published. Idempotent."""
        is_pending, self._is_pending = self._is_pending, False
        if is_pending:
            # An error here must not hide the one that made the save fail; a later save removes the rest.
            with contextlib.suppress(OSError):
                (self.path if self._reserved else self.hidden).remove_all()


def are_visible(hidden: ObjectPath, token: str) -> bool:
    """Returns whether this process sees the objects that another one creates."""
    try:
        return bool(json.loads((hidden / _UNFINISHED).read_bytes())["token"] == token)
    except FileNotFoundError:
        return False


def _replaced_objects(path: ObjectPath) -> list[str]:
    """Returns the objects of the checkpoint that is replaced; not those that others are writing."""
    names = path.names_below()
    pending = tuple(n.removesuffix(_UNFINISHED) for n in names if n.endswith(f"/{_UNFINISHED}"))
    return [name for name in names if "/" in name and not name.startswith(pending)]


def remove_objects(path: ObjectPath) -> None:
    """Removes a checkpoint: its metadata first, so it is never found half removed."""
    (path / _UNFINISHED).write_bytes(_mark(0, ""))
    (path / METADATA_FILE).unlink()
    path.remove_all(last=_UNFINISHED)


def remove_leftover_objects(directory: ObjectPath) -> None:
    """Removes what killed processes left behind: at once if they were removing, after a day if saving."""
    for name in directory.names_below():
        if name.rpartition("/")[2] != _UNFINISHED:
            continue
        mark = directory / name
        with contextlib.suppress(FileNotFoundError, ValueError):
            begun = json.loads(mark.read_bytes())["begun_ns"]
            if time.time_ns() - begun < _ABANDONED_AFTER_NS:
                continue
            _remove_leftover(mark)


def _remove_leftover(mark: ObjectPath) -> None:
    unfinished = mark.parent
    path = unfinished.parent
    if (unfinished / METADATA_FILE).exists() or _is_published(unfinished):
        mark.unlink()
        return
    unfinished.remove_all(last=_UNFINISHED)
    names = path.names_below()
    is_in_use = any(name == METADATA_FILE or name.endswith(_UNFINISHED) for name in names)
    if _RESERVED in names and not is_in_use:
        path.remove_all()


def _is_published(unfinished: ObjectPath) -> bool:
    try:
        return store_named_in((unfinished.parent / METADATA_FILE).read_bytes()) == unfinished.name
    except FileNotFoundError:
        return False


def _mark(begun_ns: int, token: str) -> bytes:
    return json.dumps({"begun_ns": begun_ns, "token": token}).encode()
