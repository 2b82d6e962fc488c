"""Parquet files, through pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stratagem._src.core.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.sources.arrow_columns import columns_of
from stratagem._src.data.sources.blocks import BlockStream
from stratagem._src.data.sources.files import FileFormat
from stratagem._src.data.structure import map_structure
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["ParquetFormat"]

_ROWS_PER_BLOCK = 8192


class ParquetFormat(FileFormat):
    """Reads rows as dicts from column name to value."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self._columns = None if columns is None else list(columns)

    def element_spec(self, path: str) -> Any:
        """Returns the specs of the columns."""
        import pyarrow as pa

        with self._file(path) as file:
            for block in self._blocks(file, path, 0):
                return map_structure(lambda leaf: TensorSpec(leaf.shape[1:], leaf.dtype), block)
            schema = file.schema_arrow
            names = self._columns or schema.names
            empty = pa.RecordBatch.from_pylist([], schema=schema).select(names)
        columns = columns_of(empty, path, 0)
        return map_structure(lambda leaf: TensorSpec(leaf.shape[1:], leaf.dtype), columns)

    def open(self, path: str) -> Stream:
        """Starts a pass over the rows."""

        def blocks(start: int) -> Iterator[Any]:
            with self._file(path) as file:
                yield from self._blocks(file, path, start)

        return BlockStream(blocks)

    def _file(self, path: str) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(path)
        except FileNotFoundError:
            raise NotFoundError(f"There is no file {path}.") from None
        except (pa.ArrowException, OSError) as error:
            raise DataLossError(f"{path}: not a complete Parquet file: {error}") from error
        missing = set(self._columns or ()) - set(file.schema_arrow.names)
        if missing:
            file.close()
            raise InvalidArgumentError(
                f"{path} has no columns {sorted(missing)}. It has {file.schema_arrow.names}."
            )
        return file

    def _blocks(self, file: Any, path: str, start: int) -> Iterator[Any]:
        import pyarrow as pa

        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if first + size <= start:
                first += size
                continue
            try:
                for batch in file.iter_batches(
                    _ROWS_PER_BLOCK, row_groups=[group], columns=self._columns
                ):
                    skipped = max(0, start - first)
                    if skipped < batch.num_rows:
                        yield columns_of(batch.slice(skipped), path, first + skipped)
                    first += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise DataLossError(
                    f"{path}: row group {group} (rows from {first} on) cannot be read: {error}"
                ) from error
