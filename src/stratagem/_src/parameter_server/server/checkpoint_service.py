"""``CheckpointService``: a parameter server saves and restores its own rows, chunk by chunk."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.checkpoint.format.array_store import ArrayOnDisk, ArrayWriter, array_context
from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath, checkpoint_path
from stratagem._src.checkpoint.format.chunks import chunk_shape
from stratagem._src.core.errors import NotFoundError
from stratagem._src.parameter_server.server.store import Store
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray

__all__ = ["CheckpointService", "Piece", "memory_budget"]


_FRACTION = 4
_MIN_BYTES = 64 << 20


class Piece(NamedTuple):
    """The rows of a checkpoint's array that one server holds.

    Attributes:
        variable: The id of the shard.
        optimizer: The id of the optimizer whose state it is; ``None`` for the variable's value.
        leaf: The index of the array in that state.
        start: The index of the shard's first row in the array.
        begin: The first row, relative to the shard.
        end: One past the last row, relative to the shard.
    """

    variable: str
    optimizer: str | None
    leaf: int
    start: int
    begin: int
    end: int

    def blocks(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Iterator[tuple[int, int]]:
        """Yields ranges of rows, relative to the shard, that end at the array's chunk boundaries."""
        step = chunk_shape(shape, dtype.itemsize)[0] if shape else 1
        begin = self.begin
        while begin < self.end:
            end = min(self.end, ((self.start + begin) // step + 1) * step - self.start)
            yield begin, end
            begin = end

    def num_bytes(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
        """Returns its size."""
        return (self.end - self.begin) * math.prod(shape[1:]) * dtype.itemsize


class _Snapshot(NamedTuple):
    """Rows as they were when a save started."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    rows: Array


class CheckpointService:
    """Saves and restores the rows that a parameter server holds.

    Args:
        store: The server's variables.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._save = ""
        self._held: list[_Snapshot] = []

    # --- saving -------------------------------------------------------------------------------------

    def snapshot(self, save: str, directory: str, work: Sequence[Mapping[str, Any]]) -> None:
        """Takes a snapshot of rows, for ``write``.

        Rows that exceed the memory budget are written immediately, chunk by chunk.

        Args:
            save: The id of the save; snapshots of another save are dropped.
            directory: The directory of this server's part of the checkpoint.
            work: ``key``, ``shape``, ``dtype`` and ``pieces`` of each array.

        Raises:
            NotFoundError: If this server does not see the checkpoint's directory.
        """
        self.forget(self._save)
        _check_visible(checkpoint_path(directory).parent, "saved")
        held: list[_Snapshot] = []
        budget = memory_budget()
        writer = ArrayWriter(checkpoint_path(directory))
        for array in work:
            key, shape, dtype = array["key"], tuple(array["shape"]), np.dtype(array["dtype"])
            for piece in map(Piece._make, array["pieces"]):
                stored = self._store.find(piece.variable)
                num_bytes = piece.num_bytes(shape, dtype)
                fits = num_bytes <= budget
                budget -= num_bytes if fits else 0
                read = _reader(stored, piece, in_memory=fits)
                for begin, end in piece.blocks(shape, dtype):
                    snapshot = _Snapshot(key, shape, dtype, piece.start + begin, read(begin, end))
                    if fits:
                        held.append(snapshot)
                    else:
                        writer.write(*snapshot)
                        writer.finish()
        with self._lock:
            self._save, self._held = save, held

    def write(self, save: str, directory: str) -> None:
        """Writes the snapshots of a save."""
        with self._lock:
            held, self._held = (self._held, []) if save == self._save else ([], self._held)
        # The chief may have abandoned the save and removed the directory since.
        _check_visible(checkpoint_path(directory).parent, "saved")
        _write_all(checkpoint_path(directory), held)

    def forget(self, save: str) -> None:
        """Drops the unwritten snapshots of a save."""
        with self._lock:
            if save == self._save:
                self._save, self._held = "", []

    # --- restoring ------------------------------------------------------------------------------------

    def verify(self, work: Sequence[Mapping[str, Any]]) -> None:
        """Checks that the saved rows can be read; changes nothing.

        Args:
            work: ``place`` and ``pieces`` of each array.
        """
        for _ in self._saved(work):
            pass

    def load(self, work: Sequence[Mapping[str, Any]]) -> None:
        """Sets rows to their saved values."""
        for stored, piece, begin, rows in self._saved(work):
            _write_rows(stored, piece, begin, rows)

    def _saved(
        self, work: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[StoredArray, Piece, int, Array]]:
        context = array_context()
        for array in work:
            _check_visible(checkpoint_path(array["place"]["directory"]), "restored")
            saved = ArrayOnDisk.at(array["place"], context)
            for piece in map(Piece._make, array["pieces"]):
                stored = self._store.find(piece.variable, allow_uninitialized=True)
                for begin, end in piece.blocks(saved.shape, saved.dtype):
                    rows = saved.rows(piece.start + begin, piece.start + end)
                    yield stored, piece, begin, rows


def _check_visible(directory: CheckpointPath, what: str) -> None:
    if not directory.is_dir():
        raise NotFoundError(
            f"A checkpoint of variables on parameter servers is {what} by the servers themselves, but "
            f"{directory} does not exist on this one. Use a path on a file system that all of them share."
        )


def _write_all(directory: CheckpointPath, held: Sequence[_Snapshot]) -> None:
    writer = ArrayWriter(directory)
    for snapshot in held:
        writer.write(*snapshot)
    writer.finish()


def _reader(stored: StoredArray, piece: Piece, *, in_memory: bool) -> Callable[[int, int], Array]:
    """Returns a function that reads rows; with ``in_memory``, all rows come from one snapshot."""
    if piece.optimizer is not None:
        return functools.partial(_state_rows, stored, piece.optimizer, piece.leaf)
    if in_memory or not stored.shape:
        # A view: a concurrent update sees the reference and writes to other memory (StoredArray._target).
        value = stored.read()
        return lambda begin, end: value[begin:end] if stored.shape else value
    return lambda begin, end: stored.read(range(begin, end))


def _state_rows(stored: StoredArray, optimizer: str, leaf: int, begin: int, end: int) -> Array:
    with stored.lock:
        return np.array(np.asarray(stored.optimizer_states[optimizer].leaves[leaf])[begin:end])


def _write_rows(stored: StoredArray, piece: Piece, begin: int, rows: Array) -> None:
    if piece.optimizer is not None:
        with stored.lock:
            state = stored.optimizer_states[piece.optimizer]
            state.make_writable()
            state.leaves[piece.leaf][begin : begin + len(rows)] = rows
    elif stored.shape:
        stored.write_rows(begin, rows)
    else:
        stored.assign(rows)


def memory_budget(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns a quarter of the memory available to this process, on the machine and in its cgroups.

    The rest is for other servers on the machine, which may do the same.

    Args:
        proc: Where the proc file system is mounted.
        cgroups: Where the cgroup file system is mounted; containers and schedulers set limits there.
    """
    left = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError):
        # MemAvailable includes the page cache.
        found = re.search(r"^MemAvailable: +([0-9]+) kB$", (proc / "meminfo").read_text(), re.M)
        left = [int(found[1]) << 10] if found else left
    left += _left_in_cgroups(proc, cgroups)
    return max(_MIN_BYTES, min(left) // _FRACTION)


def _left_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yields the memory left in each cgroup that has a limit."""
    with contextlib.suppress(OSError):
        found = re.search(r"^0::/(.*)$", (proc / "self/cgroup").read_text(), re.M)
        cgroup = cgroups / (found[1] if found else "")
        for directory in (cgroup, *cgroup.parents):
            if not directory.is_relative_to(cgroups):
                break
            with contextlib.suppress(OSError, ValueError):
                limit = int((directory / "memory.max").read_text())  # or "max"
                yield limit - int((directory / "memory.current").read_text())
