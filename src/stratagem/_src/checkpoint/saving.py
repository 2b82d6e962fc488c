"""Saves a checkpoint, alone or with other workers: the snapshot synchronously, the writing later."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from stratagem._src.checkpoint.async_save import AsyncSave
from stratagem._src.checkpoint.collective_commit import CollectiveCommit
from stratagem._src.checkpoint.format.array_store import ArrayWriter, merge_parts, part_directory
from stratagem._src.checkpoint.format.checkpoint_directories import (
    NewCheckpoint,
    is_visible,
    new_checkpoint,
    numbered_checkpoint,
    remove_leftovers,
)
from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath, checkpoint_path
from stratagem._src.checkpoint.format.chunks import divide_rows
from stratagem._src.checkpoint.format.reader import worker_key
from stratagem._src.checkpoint.format.tree_metadata import (
    METADATA_FILE,
    NUMBER,
    STEP_METADATA_FILE,
    Key,
    Leaf,
    TreeMetadata,
    array_key,
)
from stratagem._src.checkpoint.locating import complete_checkpoints
from stratagem._src.checkpoint.objects import COUNTER, Keys
from stratagem._src.checkpoint.saved_values import SavedValue, SavedVariable, ValueToSave
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.client.remote_arrays import RemoteArray
from stratagem._src.parameter_server.client.remote_checkpoint import RemoteSave
from stratagem._src.variables.locking import STORAGE_LOCK

__all__ = ["Contents", "Target", "prepare_save"]

Array = np.ndarray[Any, Any]

_MAX_SHOWN = 100
_VISIBILITY_TIMEOUT_SECONDS = 10.0
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"


class Contents(NamedTuple):
    """The contents of a checkpoint.

    Attributes:
        values: The values of this process, by key path.
        remote: The arrays on parameter servers, by key path.
        own: Our own metadata.
        is_behind: Whether this worker joined later, and has not created some variables of the others yet.
    """

    values: dict[Keys, SavedValue]
    remote: dict[Keys, RemoteArray]
    own: dict[str, Any]
    is_behind: bool = False


class Target(NamedTuple):
    """The destination of a save.

    Attributes:
        prefix: The path, or the path without its number.
        number: The number; ``None`` for one above all existing checkpoints.
        after: A lower bound: an automatic number is above it.
        is_exact: Whether the path gets no number.
    """

    prefix: CheckpointPath
    number: int | None = None
    after: int = 0
    is_exact: bool = False

    def make(self) -> tuple[NewCheckpoint, int | None]:
        """Creates the directory, and returns it with its number, if it has one."""
        prefix = self.prefix.absolute()  # the program may chdir while the checkpoint is written
        remove_leftovers(prefix.parent)
        if self.is_exact:
            return new_checkpoint(prefix), None
        if self.number is None:
            return numbered_checkpoint(prefix, self.after)
        path = prefix.with_name(f"{prefix.name}-{self.number}")
        return new_checkpoint(path), self.number


class _Piece(NamedTuple):
    """Rows of an array that this process writes."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    rows: Array


def prepare_save(
    target: Target,
    contents: Callable[[], Contents],
    commit: CollectiveCommit,
    then: Callable[[], None],
    undo: list[Callable[[], None]],
) -> tuple[AsyncSave, int | None]:
    """Takes a snapshot, and returns the save that writes it, and its number.

    Among the workers that pass the same prefix, the first one (the leader) creates the directory. Common
    values are divided between the workers, and each also writes its own values. The directory gets its name
    when all have written; if one fails, all raise and nothing remains. A worker that is behind writes
    nothing.

    Args:
        target: The destination.
        contents: Returns the contents of this worker.
        commit: Runs each phase on all workers.
        then: Called by the leader when the checkpoint is complete.
        undo: Gets functions that remove what was prepared; to be called if this raises, or if the save is
            not returned because of an interrupt.
    """
    found: list[Contents] = []

    def plan() -> Any:
        found.append(mine := _snapshot(contents))
        together = [array_key(keys) for keys, v in mine.values.items() if v.is_read_collectively]
        return [str(target.prefix.absolute()), mine.is_behind, _digest(mine), together]

    plans = commit.run_on_all(plan)
    values, remote, own, _ = found[0]
    digests = [digest for _, is_behind, digest, _ in plans if not is_behind]
    if len(set(digests)) > 1 or any(together != plans[0][3] for *_, together in plans):
        _raise_different(commit, found[0])
    same_path = [k for k, plan in enumerate(plans) if plan[0] == plans[commit.worker][0]]
    members = [k for k in same_path if not plans[k][1]] or same_path
    leader = members[0]
    is_leader = leader == commit.worker
    directories: list[NewCheckpoint] = []
    remote_saves: list[RemoteSave] = []

    def abandon() -> None:
        for remote_save in remote_saves:
            remote_save.forget()
        for new in directories:
            new.discard()

    undo.append(abandon)

    def make() -> Any:
        if not is_leader:
            return None
        new, number = target.make()
        directories.append(new)
        return [str(new.hidden), str(new.path), number, new.token]

    made = commit.run_on_all(make)[leader]
    hidden, path = map(checkpoint_path, made[:2])
    number, token = made[2:]
    on_servers = RemoteSave(
        {array_key(keys): array for keys, array in remote.items()} if is_leader else {},
        hidden,
    )
    remote_saves.append(on_servers)
    is_alone = len(members) == 1 and not on_servers.parts
    part = "" if is_alone else str(commit.worker)
    directory = part_directory(hidden, part) if part else hidden
    writer = ArrayWriter(directory, commit.send_heartbeat)
    pieces: list[_Piece] = []

    def snapshot() -> None:
        if not is_leader and commit.worker in members:
            _check_shared(hidden, token)
        pieces.extend(_local_pieces(to_snapshot, commit.worker, members))
        on_servers.snapshot(writer)

    # Collective reads first: after a step that fails on one worker alone, the others would hang in the
    # collective.
    read = {k: v.to_host() for k, v in values.items() if v.is_read_collectively}
    to_snapshot: dict[Keys, ValueToSave] = {
        k: _AlreadyRead(v, read[k]) if k in read else v for k, v in values.items()
    }
    commit.run_on_all(snapshot)
    if number is not None:
        counter = np.array(number, np.int64)
        if is_leader:
            pieces.append(_Piece(COUNTER, (), counter.dtype, 0, counter))
    leaves = [Leaf(keys, value.kind) for keys, value in values.items()]
    leaves += [Leaf(keys) for keys in remote]
    leaves += [Leaf((Key(COUNTER),), NUMBER)] if number is not None else []
    for worker in members[1:]:
        leaves += [
            Leaf((worker_key(worker), *keys), value.kind)
            for keys, value in values.items()
            if value.is_worker_local
        ]
    metadata = TreeMetadata(tuple(leaves), {**own, "workers": members[1:]})
    begun = time.time_ns()

    def write() -> None:
        commit.run_in_background()
        try:
            wrote = commit.run_on_all(lambda: _write(writer, pieces, on_servers))
            commit.run_on_all(lambda: finish([str(k) for k in members if wrote[k]]))
        except BaseException:
            on_servers.forget()
            raise
        finally:
            # Removes the directory if it was not published.
            for new in directories:
                new.discard()

    def finish(parts: list[str]) -> None:
        for new in directories:
            if part:
                merge_parts(new.hidden, [*parts, *on_servers.parts])
            last = max((saved for saved, _ in complete_checkpoints(new.path.parent)), default=0)
            saved = max(time.time_ns(), last + 1)  # the clock may have been set back
            new.publish(_files(metadata.in_directory(new.store), begun, saved), saved)
            then()

    save = AsyncSave(path, write, abandon, lambda: commit.is_superseded)
    return save, number


def _snapshot(contents: Callable[[], Contents]) -> Contents:
    """Returns the contents with a consistent snapshot of all variables, taken between two calls."""
    with STORAGE_LOCK:
        found = contents()
        values = {
            keys: value.frozen() if isinstance(value, SavedVariable) else value
            for keys, value in found.values.items()
        }
    return found._replace(values=values)


def _check_shared(hidden: CheckpointPath, token: str) -> None:
    """Checks that this worker sees the leader's directory; otherwise its share would be lost.

    Raises:
        InvalidArgumentError: If the path is not on a shared file system.
    """
    if not is_visible(hidden, token, _VISIBILITY_TIMEOUT_SECONDS):
        raise InvalidArgumentError(
            "Workers must save to a directory that all of them share, but the leader's new checkpoint is "
            f"not visible here in {hidden.parent}: each host sees its own disk. Use a directory on a "
            "shared file system, or another path on each worker."
        )


class _AlreadyRead:
    """A value that was already read, by a collective."""

    def __init__(self, value: SavedValue, array: Array) -> None:
        self._array = array
        self.kind = value.kind
        self.is_worker_local = value.is_worker_local
        self.is_read_collectively = False
        self.shape, self.dtype = value.shape, value.dtype

    def to_host(self) -> Array:
        return self._array


def _local_pieces(
    values: Mapping[Keys, ValueToSave], worker: int, members: list[int]
) -> Iterator[_Piece]:
    """Yields snapshots of the rows that this worker writes."""
    if worker not in members:
        return
    common = {
        array_key(keys): (value.shape, value.dtype.itemsize)
        for keys, value in values.items()
        if not value.is_worker_local
    }
    mine = divide_rows(common, len(members))[members.index(worker)]
    for keys, value in values.items():
        key = array_key(keys)
        if value.is_worker_local:
            if worker != members[0]:
                key = array_key((worker_key(worker), *keys))
            yield _Piece(key, value.shape, value.dtype, 0, value.to_host())
        elif key in mine:
            begin, end = mine[key]
            array = value.to_host()
            yield _Piece(
                key, value.shape, value.dtype, begin, array[begin:end] if value.shape else array
            )


def _write(writer: ArrayWriter, pieces: list[_Piece], on_servers: RemoteSave) -> bool:
    """Writes everything; returns whether this process had anything to write."""
    for piece in pieces:
        writer.write(*piece)
    on_servers.write()
    return writer.finish()


def _files(metadata: TreeMetadata, begun: int, saved: int) -> dict[str, bytes]:
    """Returns the contents of the metadata files."""
    step = {
        "item_handlers": _HANDLER,
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": begun,
        "commit_timestamp_nsecs": saved,
        "custom_metadata": {},
    }
    return {STEP_METADATA_FILE: json.dumps(step).encode(), METADATA_FILE: metadata.encode()}


def _digest(contents: Contents) -> str:
    """Returns a digest of the names, shapes and dtypes of the contents."""
    text = "\n".join(_described(contents))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(contents: Contents) -> list[str]:
    arrays: dict[Keys, ValueToSave | RemoteArray] = {**contents.values, **contents.remote}
    described = []
    for keys, array in arrays.items():
        # Worker-local values may differ in shape and dtype.
        is_own = keys in contents.values and contents.values[keys].is_worker_local
        what = "its own" if is_own else f"{array.dtype.name}{list(array.shape)}"
        described.append(f"{array_key(keys)!a}: {what}")
    return described


def _raise_different(commit: CollectiveCommit, contents: Contents) -> NoReturn:
    every = commit.run_on_all(lambda: _described(contents)[:_MAX_SHOWN])
    raise InvalidArgumentError(
        "All workers must save the same objects in a Checkpoint, got "
        + " and ".join(dict.fromkeys(map(str, every)))
        + "."
    )
