"""TFRecord files."""

from __future__ import annotations

from typing import Any

from stratagem._src.data.compressed_files import check_compression
from stratagem._src.data.plan.rows import stack_elements
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.sources.files import FileFormat
from stratagem._src.data.tensor_spec import STRING, TensorSpec
from stratagem._src.data.tfrecord.record_format import TFRecordReader

__all__ = ["TFRecordFormat"]


class TFRecordFormat(FileFormat):
    """Reads records as ``bytes`` and verifies their checksums."""

    def __init__(self, compression_type: str | None) -> None:
        self._compression = check_compression(compression_type)

    def element_spec(self, path: str) -> Any:
        """Returns the spec of one string."""
        return TensorSpec((), STRING)

    def open(self, path: str) -> Stream:
        """Starts a pass over the records."""
        return _RecordStream(path, self._compression)


class _RecordStream(TFRecordReader, Stream):
    def __init__(self, path: str, compression: str) -> None:
        super().__init__(path, compression)
        self._gave_up = False

    def next_rows(self, count: int) -> Any | None:
        records = self.take(count)
        return stack_elements(records) if records else None

    def get_state(self) -> State:
        return None if self._gave_up else self.position

    def set_state(self, state: State) -> None:
        if state is None:
            self._give_up()
        else:
            self.start_at(*state)

    def _give_up(self) -> None:
        self._gave_up = True
        self.end()

    def skip_past_error(self) -> None:
        if self.has_failed:
            self._give_up()
