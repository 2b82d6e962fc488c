"""The storage of ``cache``: a list in memory, or a file of records with checksums."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from stratagem._src.core.types import Element
from stratagem._src.data.element_format import decode_leaves, encode_leaves
from stratagem._src.data.plan.rows import copy_containers, read_only_view
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.structure import flatten, map_structure, pack_like
from stratagem._src.data.tfrecord.record_format import TFRecordReader, encode_record
from stratagem._src.process.fork import discard_buffers_in_child

__all__ = ["IN_FILE", "CacheStore", "FileStore", "MemoryStore"]

IN_FILE = "file"
"""The provenance of elements in a file, which an earlier process may have written."""


class CacheStore(ABC):
    """Stores the elements of one pass.

    Attributes:
        provenance: The seeds and the epoch of the pass, once all elements are stored; ``None`` before.
    """

    provenance: State = None

    @abstractmethod
    def read(self) -> Stream:
        """Returns a pass over the stored elements."""

    @abstractmethod
    def record(self, source: Stream, how: State) -> Stream:
        """Returns a pass over ``source`` that stores its elements if it reaches the end."""


class MemoryStore(CacheStore):
    """Stores elements in a list."""

    def __init__(self) -> None:
        self.elements: list[Any] = []

    def __reduce__(self) -> Any:
        # Another process computes the elements itself.
        return type(self), ()

    def read(self) -> Stream:
        """Returns a pass over the list."""
        return _CachedStream(map(copy_containers, self.elements), lambda: None)

    def record(self, source: Stream, how: State) -> Stream:
        """Returns a pass that fills its own list, which becomes the cache at the end."""
        elements: list[Any] = []

        def keep(element: Element) -> Any:
            elements.append(map_structure(read_only_view, element))
            return copy_containers(elements[-1])

        def finish() -> None:
            self.elements, self.provenance = elements, how

        return _RecordingStream(source, keep, finish, lambda: None)


class FileStore(CacheStore):
    """Stores elements as records in a file, which outlives the process.

    Args:
        filename: The file; it is created when the first pass is complete.
        element_spec: Returns the spec of the elements.
    """

    def __init__(self, filename: str, element_spec: Callable[[], Any]) -> None:
        self._path = Path(filename)
        self._element_spec = element_spec
        if self._path.exists():
            self.provenance = IN_FILE

    def read(self) -> Stream:
        """Returns a pass over the file."""
        reader = TFRecordReader(str(self._path))
        nest = self._element_spec()
        elements = (pack_like(nest, decode_leaves(record)) for record in reader)
        return _CachedStream(elements, reader.close)

    def record(self, source: Stream, how: State) -> Stream:
        """Returns a pass that writes to a temporary file, and renames it at the end."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.{id(source)}.partial")
        file: BinaryIO = partial.open("wb")
        discard_buffers_in_child(file)

        def keep(element: Element) -> Any:
            file.write(encode_record(encode_leaves(flatten(element))))
            return element

        def finish() -> None:
            file.close()
            partial.replace(self._path)
            self.provenance = IN_FILE

        def abandon() -> None:
            file.close()
            partial.unlink(missing_ok=True)

        return _RecordingStream(source, keep, finish, abandon)


class _CachedStream(Stream):
    def __init__(self, elements: Any, close: Callable[[], None]) -> None:
        self._elements = elements
        self._close = close

    def __next__(self) -> Any:
        return next(self._elements)

    def get_state(self) -> State:
        raise NotImplementedError("The cache saves the position.")

    def set_state(self, state: State) -> None:
        raise NotImplementedError("The cache restores the position.")

    def close(self) -> None:
        self._close()


class _RecordingStream(_CachedStream):
    def __init__(
        self,
        source: Stream,
        keep: Callable[[Any], Any],
        finish: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        super().__init__(source, abandon)
        self._source = source
        self._keep = keep
        self._finish: Callable[[], None] | None = finish

    def __next__(self) -> Any:
        try:
            element = next(self._source)
        except StopIteration:
            if self._finish is not None:
                self._finish()
                self._finish = None
            raise
        return self._keep(element)

    def skip_past_error(self) -> None:
        self._source.skip_past_error()

    def close(self) -> None:
        if self._finish is not None:
            super().close()
        self._source.close()
