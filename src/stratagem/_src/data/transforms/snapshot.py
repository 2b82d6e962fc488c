"""``snapshot``: the first complete pass writes elements to files, which later passes read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from stratagem._src.core.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.fingerprint import fingerprint
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.rows import copy_element
from stratagem._src.data.plan.run import Run, Seed, Seeded
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.saved.directory import SavedDataset, read_saved
from stratagem._src.data.saved.shard_function import ShardFunction
from stratagem._src.data.saved.writer import DatasetWriter
from stratagem._src.data.structure import flatten, same_structure

__all__ = ["Snapshot"]


class Snapshot(Seeded):
    """The elements of the input, read from files once these are complete.

    Args:
        source: The plan whose elements are saved.
        path: The directory of all snapshots of a program.
        key: Identifies this snapshot; the fingerprint of the input by default.
        compression: ``""`` or ``"GZIP"``.
        shard_func: Returns the shard index of an element.
        read_plan: Returns the plan that reads a saved dataset.
    """

    derived_attributes = ("_original",)

    def __init__(
        self,
        source: Node,
        path: str,
        key: str | None,
        compression: str,
        shard_func: Callable[..., Any] | None,
        read_plan: Callable[[SavedDataset], Node],
    ) -> None:
        if source.cardinality() == INFINITE_CARDINALITY:
            raise InvalidArgumentError(
                "A snapshot of infinitely many elements is never complete. Put repeat() after it."
            )
        self.inputs = (source,)
        self.seed = Seed(None)
        self._original = source
        self._path = Path(path)
        self._key = key
        self.compression = compression
        self.shard_of = ShardFunction(shard_func)
        self.read_plan = read_plan

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """Returns a snapshot of other elements, with its own files."""
        node = super().over(inputs)
        node._original = inputs[0]
        return node

    def directory(self) -> Path:
        """Returns the directory of its files."""
        if self._key is None:
            return self._path / f"{fingerprint(self._original):016x}"
        return self._path / hashlib.blake2b(self._key.encode(), digest_size=8).hexdigest()

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _SnapshotStream(
            self, lambda: self.inputs[0].open(run, epoch), run, run.key(self.seed, epoch)
        )

    def saved(self) -> SavedDataset | None:
        """Returns the saved dataset, if it is complete.

        Raises:
            InvalidArgumentError: If its spec differs from that of the input.
        """
        try:
            saved = read_saved(self.directory())
        except NotFoundError:
            return None
        expected = self._original.element_spec
        same = same_structure(saved.element_spec, expected)
        if not same or flatten(saved.element_spec) != flatten(expected):
            raise InvalidArgumentError(
                f"The snapshot in {self.directory()} has elements of {saved.element_spec}, but the "
                f"dataset now has {expected}. Change the key, or remove the snapshot."
            )
        return saved

    def writer(self) -> DatasetWriter:
        """Returns a writer for the elements of a pass."""
        return DatasetWriter(self.directory(), self._original.element_spec, self.compression)


class _SnapshotStream(Stream):
    """A pass over the files, or a pass over the input that writes them.

    A pass over the input that is saved and restored continues to read the input, and writes nothing.
    """

    def __init__(
        self, node: Snapshot, open_source: Callable[[], Stream], run: Run, key: list[int]
    ) -> None:
        self._node = node
        self._open_source = open_source
        self._run = run
        self._key = key
        self._files: str | None = None
        self._stream: Stream | None = None
        self._writer: DatasetWriter | None = None

    def _started(self) -> Stream:
        if self._stream is None:
            saved = self._node.saved()
            if saved is None:
                self._stream = self._open_source()
                self._writer = self._node.writer()
            else:
                self._stream = self._read(saved)
        return self._stream

    def _read(self, saved: SavedDataset) -> Stream:
        self._files = saved.run.name
        plan = self._node.read_plan(saved)
        return lower(plan).open(Run.within(plan, self._run, self._key, 0), ())

    def __next__(self) -> Any:
        stream = self._started()
        try:
            element = next(stream)
            if self._writer is not None:
                # The writer buffers elements, and the consumer may modify its own in the meantime.
                kept = copy_element(element)
                self._writer.add(kept, self._node.shard_of(element))
        except StopIteration:
            if self._writer is not None:
                self._writer.finish(replace=False)
                self._writer = None
            raise
        except BaseException:
            self._abandon()
            raise
        return element

    def _abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def get_state(self) -> State:
        return {"stream": self._started().get_state(), "files": self._files}

    def set_state(self, state: State) -> None:
        if state["files"] is None:
            self._stream = self._open_source()
        else:
            saved = self._node.saved()
            if saved is None or saved.run.name != state["files"]:
                raise DataLossError(
                    "The snapshot that the saved iterator read from is gone: "
                    f"{self._node.directory() / state['files']}."
                )
            self._stream = self._read(saved)
        self._stream.set_state(state["stream"])

    def skip_past_error(self) -> None:
        if self._stream is not None:
            self._stream.skip_past_error()

    def close(self) -> None:
        self._abandon()
        if self._stream is not None:
            self._stream.close()
