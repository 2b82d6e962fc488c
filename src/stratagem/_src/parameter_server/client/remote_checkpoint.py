"""Saves and restores arrays on parameter servers; each server writes and reads its own rows."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stratagem._src.checkpoint.format.array_store import ArrayOnDisk, ArrayWriter, part_directory
from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.checkpoint.format.chunks import chunk_shape
from stratagem._src.checkpoint.format.saved_state import SavedArray
from stratagem._src.core.errors import PSUnavailableError
from stratagem._src.parameter_server.client.initial_value import row_blocks
from stratagem._src.parameter_server.client.parameter_client import ParameterClient
from stratagem._src.parameter_server.client.remote_arrays import RemoteArray, StateArray
from stratagem._src.parameter_server.client.state_actions import make_state
from stratagem._src.parameter_server.server.checkpoint_service import Piece

__all__ = ["RemoteRestore", "RemoteSave"]

Pieces = Iterable[tuple[int, Piece]]


class _Work(NamedTuple):
    """The work of one server: its pieces of each array, and their size."""

    client: ParameterClient
    server: int
    arrays: list[dict[str, Any]]
    num_bytes: int


class RemoteSave:
    """A save of arrays on parameter servers.

    A server writes the chunks whose rows it holds completely. Chunks that span two shards are sent to
    this process and written here; a sharded table has few of them.

    Args:
        arrays: The arrays, by their keys in the checkpoint.
        directory: The checkpoint's directory.
    """

    def __init__(self, arrays: Mapping[str, RemoteArray], directory: CheckpointPath) -> None:
        self._arrays = arrays
        self._id = uuid.uuid4().hex
        described = [
            (
                array,
                {"key": key, "shape": list(array.shape), "dtype": array.dtype.name},
                _complete_chunks(array),
            )
            for key, array in arrays.items()
        ]
        # The id keeps a server that is still writing for an abandoned save out of this save's directory.
        self._work = {f"ps_{work.server}_{self._id[:8]}": work for work in _by_server(described)}
        self._directories = {
            part: str(part_directory(directory, part).absolute()) for part in self._work
        }

    @property
    def parts(self) -> list[str]:
        """The names of the checkpoint parts that servers write."""
        return list(self._work)

    def snapshot(self, writer: ArrayWriter) -> None:
        """Makes the servers snapshot their rows, and writes the chunks that span several shards."""
        _create_missing_states(self._arrays.values())
        self._ask("ps/take", lambda work: {"work": work.arrays})
        for key, array in self._arrays.items():
            for begin, end in _locally_written_rows(array):
                writer.write(key, array.shape, array.dtype, begin, array.read_rows(begin, end))

    def write(self) -> None:
        """Makes the servers write their snapshots."""
        self._ask("ps/write", lambda work: {})

    def forget(self) -> None:
        """Makes the servers drop their snapshots."""
        for work in self._work.values():
            # A lost server has nothing left to drop.
            with contextlib.suppress(PSUnavailableError):
                work.client.request(work.server, "ps/forget", save=self._id)

    def _ask(self, method: str, fields: Callable[[_Work], dict[str, Any]]) -> None:
        def ask(part: str, work: _Work) -> None:
            fields_sent = {"save": self._id, "directory": self._directories[part], **fields(work)}
            work.client.request_work(work.server, method, work.num_bytes, fields_sent)

        _in_parallel(self._work, ask)


class RemoteRestore:
    """A restore of arrays on parameter servers.

    Args:
        pairs: The arrays, each with its saved array.
    """

    def __init__(self, pairs: Sequence[tuple[RemoteArray, SavedArray]]) -> None:
        self._arrays = [array for array, _ in pairs]
        self._local: list[tuple[RemoteArray, SavedArray]] = []
        by_servers = []
        for array, saved in pairs:
            pieces = array.pieces()
            if isinstance(saved, ArrayOnDisk) and pieces:
                by_servers.append((array, {"place": saved.place}, pieces))
            else:
                self._local.append((array, saved))
        self._work = _by_server(by_servers)

    def verify(self) -> None:
        """Checks that each server, and this process, can read the rows it needs; changes nothing.

        Raises:
            DataLossError: If a file is corrupt.
        """
        self._ask("ps/verify")
        for _, saved in self._local:
            saved.verify()

    def load(self) -> None:
        """Restores all arrays; each server reads its own rows."""
        _create_missing_states(self._arrays)
        self._ask("ps/load")
        for array, saved in self._local:
            for begin, end in _blocks(array):
                array.write_rows(begin, saved.rows(begin, end))

    def _ask(self, method: str) -> None:
        def ask(_: int, work: _Work) -> None:
            work.client.request_work(work.server, method, work.num_bytes, {"work": work.arrays})

        _in_parallel(dict(enumerate(self._work)), ask)


def _in_parallel(work: Mapping[Any, _Work], ask: Callable[[Any, _Work], None]) -> None:
    """Sends the requests to all servers in parallel, and waits for all of them."""
    if work:
        keys = list(work)
        client = work[keys[0]].client
        client.in_parallel(dict(enumerate(keys)), lambda _, key: ask(key, work[key]))


def _by_server(
    described: Iterable[tuple[RemoteArray, dict[str, Any], Pieces]],
) -> list[_Work]:
    found: dict[tuple[int, int], _Work] = {}
    for array, description, pieces in described:
        client = array.variable.storage
        row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
        mine: dict[int, list[Piece]] = {}
        for server, piece in pieces:
            mine.setdefault(server, []).append(piece)
        for server, own in mine.items():
            key = id(client), server
            work = found.get(key) or _Work(client, server, [], 0)
            work.arrays.append({**description, "pieces": own})
            more = sum(piece.end - piece.begin for piece in own) * row_bytes
            found[key] = work._replace(num_bytes=work.num_bytes + more)
    return list(found.values())


def _create_missing_states(arrays: Iterable[RemoteArray]) -> None:
    """Creates missing optimizer state on the shards of all state arrays."""
    made = set()
    for array in arrays:
        if isinstance(array, StateArray):
            for shard in array.variable.shards:
                if (shard.id, array.function) not in made:
                    made.add((shard.id, array.function))
                    make_state(array.variable, shard, array.function)


def _blocks(array: RemoteArray) -> Iterable[tuple[int, int]]:
    """Returns the row ranges to transfer one at a time; ``(0, -1)`` for the full array."""
    if not array.shape or not array.pieces():
        return [(0, -1)]
    return row_blocks(array.shape, array.dtype, 0, array.shape[0])


def _step(array: RemoteArray) -> int:
    return chunk_shape(array.shape, array.dtype.itemsize)[0] if array.shape else 1


def _complete_chunks(array: RemoteArray) -> Iterator[tuple[int, Piece]]:
    """Yields the pieces trimmed to the chunks that they contain completely."""
    step, num_rows = _step(array), array.shape[0] if array.shape else 1
    for server, piece in array.pieces():
        first, last = piece.start + piece.begin, piece.start + piece.end
        first = -(-first // step) * step
        last = last if last == num_rows else last // step * step
        if first < last:
            yield server, piece._replace(begin=first - piece.start, end=last - piece.start)


def _locally_written_rows(array: RemoteArray) -> Iterator[tuple[int, int]]:
    """Yields the row ranges of the chunks that no server writes."""
    step, num_rows = _step(array), array.shape[0] if array.shape else 1
    theirs = [(p.start + p.begin, p.start + p.end) for _, p in _complete_chunks(array)]
    ends = iter(sorted(theirs))
    begin = 0
    for first, last in [*ends, (num_rows, num_rows)]:
        for chunk in range(begin, first, step):
            yield chunk, min(chunk + step, num_rows)
        begin = last
    if not num_rows:
        yield 0, 0
