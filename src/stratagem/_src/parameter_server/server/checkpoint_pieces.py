"""Checkpoints on a parameter server: it writes and reads the rows that it holds itself, chunk by chunk."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.checkpoint.format.array_store import ArrayOnDisk, ArrayWriter, array_context
from stratagem._src.checkpoint.format.chunks import chunk_shape
from stratagem._src.core.errors import NotFoundError
from stratagem._src.parameter_server.server.spare_memory import bytes_to_spare
from stratagem._src.parameter_server.server.store import Store
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray

__all__ = ["CheckpointPieces", "Piece"]


class Piece(NamedTuple):
    """Rows of an array of a checkpoint that one server holds.

    Attributes:
        variable: The id of the shard.
        optimizer: The id of the optimizer whose state it is; ``None`` for the value.
        leaf: Which array of that state.
        start: The number of the shard's first row in the array.
        begin: The first row, counted in the shard.
        end: One past the last.
    """

    variable: str
    optimizer: str | None
    leaf: int
    start: int
    begin: int
    end: int

    def blocks(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Iterator[tuple[int, int]]:
        """Yields its rows in parts that end where chunks of the array do, counted in the shard."""
        step = chunk_shape(shape, dtype.itemsize)[0] if shape else 1
        begin = self.begin
        while begin < self.end:
            end = min(self.end, ((self.start + begin) // step + 1) * step - self.start)
            yield begin, end
            begin = end

    def num_bytes(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
        """Returns how much it is."""
        return (self.end - self.begin) * math.prod(shape[1:]) * dtype.itemsize


class _Taken(NamedTuple):
    """Rows as they were when a save began."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    rows: Array


class CheckpointPieces:
    """What a parameter server does for checkpoints.

    Args:
        store: What it holds.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._save = ""
        self._held: list[_Taken] = []

    # --- saving -------------------------------------------------------------------------------------

    def take(self, save: str, directory: str, work: Sequence[Mapping[str, Any]]) -> None:
        """Takes rows as they are now, for ``write``.

        What there is no memory for is written at once, chunk by chunk.

        Args:
            save: A name for the save; what was taken for another is dropped.
            directory: Where this server's part of the checkpoint will be.
            work: ``key``, ``shape``, ``dtype`` and ``pieces`` of each array.

        Raises:
            NotFoundError: If the checkpoint is being written where this server sees nothing.
        """
        self.forget(self._save)
        _check_seen(Path(directory).parent, "saved")
        held: list[_Taken] = []
        room = bytes_to_spare()
        writer = ArrayWriter(Path(directory))
        for array in work:
            key, shape, dtype = array["key"], tuple(array["shape"]), np.dtype(array["dtype"])
            for piece in map(Piece._make, array["pieces"]):
                stored = self._store.find(piece.variable)
                num_bytes = piece.num_bytes(shape, dtype)
                is_held = num_bytes <= room
                room -= num_bytes if is_held else 0
                read = _reader(stored, piece, to_be_held=is_held)
                for begin, end in piece.blocks(shape, dtype):
                    taken = _Taken(key, shape, dtype, piece.start + begin, read(begin, end))
                    if is_held:
                        held.append(taken)
                    else:
                        writer.write(*taken)
                        writer.finish()
        with self._lock:
            self._save, self._held = save, held

    def write(self, save: str, directory: str) -> None:
        """Writes what was taken."""
        with self._lock:
            held, self._held = (self._held, []) if save == self._save else ([], self._held)
        # The chief may have given up meanwhile, and removed it.
        _check_seen(Path(directory).parent, "saved")
        _write_all(Path(directory), held)

    def forget(self, save: str) -> None:
        """Drops what was taken for a save and not written."""
        with self._lock:
            if save == self._save:
                self._save, self._held = "", []

    # --- restoring ------------------------------------------------------------------------------------

    def verify(self, work: Sequence[Mapping[str, Any]]) -> None:
        """Checks that rows can be read, and changes nothing.

        Args:
            work: ``place`` and ``pieces`` of each array.
        """
        for _ in self._saved(work):
            pass

    def load(self, work: Sequence[Mapping[str, Any]]) -> None:
        """Sets rows to what was saved."""
        for stored, piece, begin, rows in self._saved(work):
            _set_rows(stored, piece, begin, rows)

    def _saved(
        self, work: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[StoredArray, Piece, int, Array]]:
        context = array_context()
        for array in work:
            _check_seen(Path(array["place"]["directory"]), "restored")
            saved = ArrayOnDisk.at(array["place"], context)
            for piece in map(Piece._make, array["pieces"]):
                stored = self._store.find(piece.variable, to_be_set=True)
                for begin, end in piece.blocks(saved.shape, saved.dtype):
                    rows = saved.rows(piece.start + begin, piece.start + end)
                    yield stored, piece, begin, rows


def _check_seen(directory: Path, what: str) -> None:
    if not directory.is_dir():
        raise NotFoundError(
            f"A checkpoint of variables on parameter servers is {what} by the servers themselves, and this "
            f"one finds no {directory}. Give a path that leads to the same directory everywhere."
        )


def _write_all(directory: Path, held: Sequence[_Taken]) -> None:
    writer = ArrayWriter(directory)
    for taken in held:
        writer.write(*taken)
    writer.finish()


def _reader(stored: StoredArray, piece: Piece, *, to_be_held: bool) -> Callable[[int, int], Array]:
    """Returns what reads rows: of one moment, if they are to be held."""
    if piece.optimizer is not None:
        return functools.partial(_rows_of_state, stored, piece.optimizer, piece.leaf)
    if to_be_held or not stored.shape:
        # An update that comes meanwhile writes elsewhere.
        whole = stored.read()
        return lambda begin, end: whole[begin:end] if stored.shape else whole
    return lambda begin, end: stored.read(range(begin, end))


def _rows_of_state(stored: StoredArray, optimizer: str, leaf: int, begin: int, end: int) -> Array:
    with stored.lock:
        return np.array(np.asarray(stored.optimizer_states[optimizer].leaves[leaf])[begin:end])


def _set_rows(stored: StoredArray, piece: Piece, begin: int, rows: Array) -> None:
    if piece.optimizer is not None:
        with stored.lock:
            state = stored.optimizer_states[piece.optimizer]
            state.make_writable()
            state.leaves[piece.leaf][begin : begin + len(rows)] = rows
    elif stored.shape:
        stored.write_rows(begin, rows)
    else:
        stored.assign(rows)
