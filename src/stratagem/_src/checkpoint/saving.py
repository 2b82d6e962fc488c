"""Saving a checkpoint, alone or with the other workers: first what must be taken now, then the rest."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from stratagem._src.checkpoint.async_save import SaveUnderWay
from stratagem._src.checkpoint.collective_commit import WorkerAgreement
from stratagem._src.checkpoint.format.array_store import ArrayWriter, merge_parts, part_directory
from stratagem._src.checkpoint.format.chunks import divide_rows
from stratagem._src.checkpoint.format.directories import NewDirectory, is_seen, remove_left_overs
from stratagem._src.checkpoint.format.reader import worker_key
from stratagem._src.checkpoint.format.tree_metadata import (
    METADATA_FILE,
    NUMBER,
    Key,
    Leaf,
    TreeMetadata,
    array_key,
)
from stratagem._src.checkpoint.locating import make_latest
from stratagem._src.checkpoint.objects import COUNTER, Keys
from stratagem._src.checkpoint.saved_values import SavedValue, SavedVariable, ValueToSave
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.client.remote_arrays import RemoteArray
from stratagem._src.parameter_server.client.remote_checkpoint import RemoteSave
from stratagem._src.variables.atomicity import STORAGE_LOCK

__all__ = ["Contents", "Target", "begin_save"]

Array = np.ndarray[Any, Any]

_MOST_SHOWN = 100
_SECONDS_TO_SEE = 10.0
_STEP_METADATA_FILE = "_CHECKPOINT_METADATA"
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"


class Contents(NamedTuple):
    """What there is to save.

    Attributes:
        values: What is in this process, by the ways to it.
        remote: What is on parameter servers.
        own: What is noted beside.
        is_behind: Whether other workers have variables that this one, which has come later, has not
            created yet.
    """

    values: dict[Keys, SavedValue]
    remote: dict[Keys, RemoteArray]
    own: dict[str, Any]
    is_behind: bool = False


class Target(NamedTuple):
    """Where to save.

    Attributes:
        prefix: The path, or the path without its number.
        number: The number; ``None`` for one above all that there are.
        after: What such a number is above in any case.
        is_exact: Whether the path gets no number.
    """

    prefix: Path
    number: int | None = None
    after: int = 0
    is_exact: bool = False

    def make(self) -> tuple[NewDirectory, int | None]:
        """Makes the directory, and returns its number if it has one."""
        prefix = self.prefix.absolute()  # the program may change its directory while it is written
        remove_left_overs(prefix.parent)
        if self.is_exact:
            return NewDirectory(prefix, replace=True), None
        if self.number is None:
            return NewDirectory.numbered(prefix, self.after)
        path = prefix.with_name(f"{prefix.name}-{self.number}")
        return NewDirectory(path, replace=True), self.number


class _Piece(NamedTuple):
    """Rows of an array that this process writes."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    rows: Array


def begin_save(
    target: Target,
    contents: Callable[[], Contents],
    agreement: WorkerAgreement,
    then: Callable[[], None],
) -> tuple[SaveUnderWay, int | None]:
    """Takes what is to be saved, and returns the save that is left to be written, and its number.

    Of the workers that give the same prefix the first makes the directory. What all of them have in
    common is divided between them, and each writes what it has of its own. The directory appears when
    all have written; if one fails, all raise and nothing is left. A worker that is behind leaves it to the
    others.

    Args:
        target: Where to save.
        contents: Returns what this worker has to save.
        agreement: What ties the workers together.
        then: Called by the first of the workers when the checkpoint is complete.
    """
    found: list[Contents] = []

    def plan() -> Any:
        found.append(mine := _frozen(contents))
        together = [array_key(keys) for keys, v in mine.values.items() if v.is_read_together]
        return [os.path.abspath(target.prefix), mine.is_behind, _digest(mine), together]

    plans = agreement.settle(plan)
    values, remote, own, _ = found[0]
    whole = [digest for _, is_behind, digest, _ in plans if not is_behind]
    if len(set(whole)) > 1 or any(together != plans[0][3] for *_, together in plans):
        _refuse_different(agreement, found[0])
    same = [k for k, plan in enumerate(plans) if plan[0] == plans[agreement.worker][0]]
    members = [k for k in same if not plans[k][1]] or same
    leader = members[0]
    leads = leader == agreement.worker
    directories: list[NewDirectory] = []

    def make() -> Any:
        if not leads:
            return None
        new, number = target.make()
        directories.append(new)
        return [os.path.abspath(new.hidden), os.path.abspath(new.path), number, new.token]

    try:
        hidden, path, number, token = agreement.settle(make)[leader]
        on_servers = RemoteSave(
            {array_key(keys): array for keys, array in remote.items()} if leads else {},
            Path(hidden),
        )
        is_alone = len(members) == 1 and not on_servers.parts
        part = "" if is_alone else str(agreement.worker)
        directory = part_directory(Path(hidden), part) if part else Path(hidden)
        writer = ArrayWriter(directory, agreement.show_sign)
        pieces: list[_Piece] = []

        def take() -> None:
            if not leads and agreement.worker in members:
                _check_shared(Path(hidden), token)
            pieces.extend(_take(to_take, agreement.worker, members))
            on_servers.take(writer)

        # Values that are read together, before anything that may fail on one worker alone.
        read = {k: v.take() for k, v in values.items() if v.is_read_together}
        to_take: dict[Keys, ValueToSave] = {
            k: _Taken(v, read[k]) if k in read else v for k, v in values.items()
        }
        agreement.settle(take)
    except BaseException:
        for new in directories:
            new.give_up()
        raise
    if number is not None:
        counter = np.array(number, np.int64)
        if leads:
            pieces.append(_Piece(COUNTER, (), counter.dtype, 0, counter))
    leaves = [Leaf(keys, value.kind) for keys, value in values.items()]
    leaves += [Leaf(keys) for keys in remote]
    leaves += [Leaf((Key(COUNTER),), NUMBER)] if number is not None else []
    for worker in members[1:]:
        leaves += [
            Leaf((worker_key(worker), *keys), value.kind)
            for keys, value in values.items()
            if value.is_of_this_worker
        ]
    metadata = TreeMetadata(tuple(leaves), {**own, "workers": members[1:]})
    begun = time.time_ns()

    def write() -> None:
        agreement.go_on_in_background()
        try:
            wrote = agreement.settle(lambda: _write(writer, pieces, on_servers))
            agreement.settle(lambda: finish([str(k) for k in members if wrote[k]]))
        except BaseException:
            on_servers.forget()
            raise
        finally:
            # Nothing is left of one that has not appeared.
            for new in directories:
                new.give_up()

    def abandon() -> None:
        on_servers.forget()
        for new in directories:
            new.give_up()

    def finish(parts: list[str]) -> None:
        for new in directories:
            if part:
                merge_parts(new.hidden, [*parts, *on_servers.parts])
            _write_metadata(new.hidden, metadata, begun)
            make_latest(new.hidden, new.path.parent)
            new.appear()
            then()

    save = SaveUnderWay(Path(path), write, abandon, lambda: agreement.is_of_the_past)
    return save, number


def _frozen(contents: Callable[[], Contents]) -> Contents:
    """Returns the contents with the values that all variables have at one moment, between two calls."""
    with STORAGE_LOCK:
        found = contents()
        values = {
            keys: value.frozen() if isinstance(value, SavedVariable) else value
            for keys, value in found.values.items()
        }
    return found._replace(values=values)


def _check_shared(hidden: Path, token: str) -> None:
    """Checks that this worker writes where the leader does; else nobody would find what it wrote.

    Raises:
        InvalidArgumentError: If the directory is on a disk of its own.
    """
    if not is_seen(hidden, token, _SECONDS_TO_SEE):
        raise InvalidArgumentError(
            "Workers must save in a directory that all of them share, but here "
            f"{hidden.parent} has not got what the leader has begun in it: each host sees a disk of its "
            "own. Use a directory on a shared file system, or give each worker another path."
        )


class _Taken:
    """A value that was read already."""

    def __init__(self, value: SavedValue, array: Array) -> None:
        self._array = array
        self.kind = value.kind
        self.is_of_this_worker = value.is_of_this_worker
        self.is_read_together = False
        self.shape, self.dtype = value.shape, value.dtype

    def take(self) -> Array:
        return self._array


def _take(values: Mapping[Keys, ValueToSave], worker: int, members: list[int]) -> Iterator[_Piece]:
    """Takes what this worker has to write."""
    if worker not in members:
        return
    common = {
        array_key(keys): (value.shape, value.dtype.itemsize)
        for keys, value in values.items()
        if not value.is_of_this_worker
    }
    mine = divide_rows(common, len(members))[members.index(worker)]
    for keys, value in values.items():
        key = array_key(keys)
        if value.is_of_this_worker:
            if worker != members[0]:
                key = array_key((worker_key(worker), *keys))
            yield _Piece(key, value.shape, value.dtype, 0, value.take())
        elif key in mine:
            begin, end = mine[key]
            array = value.take()
            yield _Piece(
                key, value.shape, value.dtype, begin, array[begin:end] if value.shape else array
            )


def _write(writer: ArrayWriter, pieces: list[_Piece], on_servers: RemoteSave) -> bool:
    """Writes everything; returns whether there was something for this process to write."""
    for piece in pieces:
        writer.write(*piece)
    on_servers.write()
    return writer.finish()


def _write_metadata(directory: Path, metadata: TreeMetadata, begun: int) -> None:
    step = {
        "item_handlers": _HANDLER,
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": begun,
        "commit_timestamp_nsecs": time.time_ns(),
        "custom_metadata": {},
    }
    files = {_STEP_METADATA_FILE: json.dumps(step).encode(), METADATA_FILE: metadata.encode()}
    for name, content in files.items():
        with (directory / name).open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _digest(contents: Contents) -> str:
    """Returns something short that differs for other contents."""
    text = "\n".join(_described(contents))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(contents: Contents) -> list[str]:
    arrays: dict[Keys, ValueToSave | RemoteArray] = {**contents.values, **contents.remote}
    described = []
    for keys, array in arrays.items():
        # What each worker has of its own may differ.
        is_own = keys in contents.values and contents.values[keys].is_of_this_worker
        what = "its own" if is_own else f"{array.dtype.name}{list(array.shape)}"
        described.append(f"{array_key(keys)!a}: {what}")
    return described


def _refuse_different(agreement: WorkerAgreement, contents: Contents) -> NoReturn:
    every = agreement.settle(lambda: _described(contents)[:_MOST_SHOWN])
    raise InvalidArgumentError(
        "All workers must save the same things in a Checkpoint, got "
        + " and ".join(dict.fromkeys(map(str, every)))
        + "."
    )
