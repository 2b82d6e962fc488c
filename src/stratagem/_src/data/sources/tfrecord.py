"""TFRecord files."""

from __future__ import annotations

from typing import Any

from stratagem._src.data.byte_files import check_compression
from stratagem._src.data.plan.rows import stack_elements
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.sources.files import FileFormat
from stratagem._src.data.tensor_spec import STRING, TensorSpec
from stratagem._src.data.tfrecord.record_format import TFRecordReader

__all__ = ["TFRecordFormat"]


class TFRecordFormat(FileFormat):
    """Records as ``bytes``, their checksums checked."""

    def __init__(self, compression_type: str | None) -> None:
        self._compression = check_compression(compression_type)

    def element_spec(self, path: str) -> Any:
        """Returns one string."""
        return TensorSpec((), STRING)

    def open(self, path: str) -> Stream:
        """Starts a pass over the records."""
        return _RecordStream(path, self._compression)


class _RecordStream(Stream):
    def __init__(self, path: str, compression: str) -> None:
        self._path = path
        self._compression = compression
        self._reader = TFRecordReader(path, compression)
        self._gave_up = False

    def __next__(self) -> Any:
        return next(self._reader)

    def next_rows(self, count: int) -> Any | None:
        records = self._reader.take(count)
        return stack_elements(records) if records else None

    def skip(self, count: int) -> int:
        return self._reader.skip(count)

    def get_state(self) -> State:
        return None if self._gave_up else self._reader.position

    def set_state(self, state: State) -> None:
        if state is None:
            self._give_up()
            return
        offset, number = state
        self._reader = TFRecordReader(self._path, self._compression, offset, number)

    def _give_up(self) -> None:
        self._gave_up = True
        self._reader.end()

    def pass_over_error(self) -> None:
        if self._reader.has_failed:
            self._give_up()

    def close(self) -> None:
        self._reader.close()
