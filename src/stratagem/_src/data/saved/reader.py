"""Reads the elements of a saved dataset."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import Any

from stratagem._src.core.errors import DataLossError, InvalidArgumentError
from stratagem._src.core.types import ElementSpec
from stratagem._src.data.compressed_files import as_path
from stratagem._src.data.dataset_spec import common_spec
from stratagem._src.data.element_format import decode_leaves
from stratagem._src.data.plan.block_rows import BlockRows
from stratagem._src.data.plan.node import Node, known
from stratagem._src.data.plan.peek import peek
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.saved.directory import SavedDataset, SavedShard
from stratagem._src.data.sources.elements import Elements
from stratagem._src.data.sources.files import FileFormat, ReadFiles
from stratagem._src.data.sources.tensors import TensorSlices
from stratagem._src.data.structure import flatten, pack_like, same_structure
from stratagem._src.data.tfrecord.record_format import TFRecordReader

__all__ = ["SavedElements", "check_spec", "saved_plan", "shard_plan"]

_MAX_OPEN_SHARDS = 64


class SavedElements(ReadFiles):
    """The interleaved elements of shards, one of each in turn."""

    def __init__(self, names: Node, file_format: _SavedFormat, num_shards: int) -> None:
        super().__init__(names, file_format, None, cycle_length=min(num_shards, _MAX_OPEN_SHARDS))
        self._elements_of = file_format.num_elements

    def cardinality(self) -> int:
        """Returns the number of elements of the shards."""
        num_names = self.inputs[0].cardinality()
        if not known(num_names):
            return num_names
        with contextlib.closing(peek(self.inputs[0])) as names:
            return sum(self._elements_of(as_path(name)) for name in names)


def saved_plan(saved: SavedDataset, element_spec: ElementSpec) -> Node:
    """Returns the plan of a saved dataset's elements."""
    if not saved.shards:
        return Elements([], lambda: element_spec)
    return _plan(saved, element_spec, saved.shards)


def shard_plan(saved: SavedDataset, element_spec: ElementSpec, shard: SavedShard) -> Node:
    """Returns the plan of the elements of one shard."""
    return _plan(saved, element_spec, (shard,))


def _plan(saved: SavedDataset, element_spec: ElementSpec, shards: tuple[SavedShard, ...]) -> Node:
    names = TensorSlices([str(saved.run / shard.file) for shard in shards])
    return SavedElements(names, _SavedFormat(saved, element_spec), len(shards))


def check_spec(saved: SavedDataset, wanted: ElementSpec) -> Any:
    """Returns the spec that the user expects, or the saved one by default.

    Raises:
        InvalidArgumentError: If the saved dataset is not compatible with it.
    """
    if wanted is None:
        return saved.element_spec
    fits = same_structure(wanted, saved.element_spec)
    if fits:
        pairs = zip(flatten(wanted), flatten(saved.element_spec), strict=True)
        fits = all(spec.is_compatible_with(found) for spec, found in pairs)
    if not fits or common_spec(wanted, saved.element_spec, "load") is None:
        raise InvalidArgumentError(
            f"element_spec must match the saved one, {saved.element_spec}, got {wanted}. Leave it out."
        )
    return wanted


class _SavedFormat(FileFormat):
    def __init__(self, saved: SavedDataset, element_spec: ElementSpec) -> None:
        self._spec = element_spec
        self._compression = saved.compression
        self._num_elements = {Path(s.file).name: s.num_elements for s in saved.shards}

    def num_elements(self, path: str) -> int:
        return self._num_elements[Path(path).name]

    def element_spec(self, path: str) -> Any:
        return self._spec

    def open(self, path: str) -> Stream:
        return _ShardStream(path, self._compression, self._spec, self.num_elements(path))


class _ShardStream(BlockRows):
    """The rows of the blocks of a file."""

    def __init__(
        self, path: str, compression: str, element_spec: ElementSpec, num_elements: int
    ) -> None:
        self._path = path
        self._compression = compression
        self._spec = element_spec
        self._num_elements = num_elements
        self._reader = TFRecordReader(path)
        self._gave_up = False
        self._before: Any = (0, 0)

    @property
    def uniform(self) -> bool:
        return all(spec.shape.is_fully_defined() for spec in flatten(self._spec))

    def _next_block(self) -> Any | None:
        before = self._reader.position
        record = next(self._reader, None)
        if record is None:
            if self._given != self._num_elements:
                raise DataLossError(
                    f"{self._path} ends after {self._given} elements, but was saved with "
                    f"{self._num_elements}."
                )
            return None
        self._before = before
        return self._decoded(record, before[1])

    def _decoded(self, record: bytes, number: int) -> Any:
        try:
            payload = zlib.decompress(record) if self._compression else record
            return pack_like(self._spec, decode_leaves(payload))
        except (zlib.error, ValueError, TypeError, StopIteration) as error:
            raise DataLossError(f"{self._path}: block {number} is corrupt: {error}") from error

    def get_state(self) -> State:
        if self._gave_up:
            return None
        if self._position >= self._size:
            return {"block": list(self._reader.position), "row": 0, "given": self._given}
        return {"block": list(self._before), "row": self._position, "given": self._given}

    def set_state(self, state: State) -> None:
        if state is None:
            self._give_up()
            return
        self._reader.start_at(*state["block"])
        self._given = state["given"] - state["row"]
        self.skip(state["row"])

    def _give_up(self) -> None:
        self._gave_up = True
        self._reader.end()
        self._num_elements = self._given

    def skip_past_error(self) -> None:
        if self._reader.has_failed:
            self._give_up()

    def close(self) -> None:
        self._reader.close()
