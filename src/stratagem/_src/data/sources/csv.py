"""CSV files, through pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stratagem._src.core.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.sources.arrow_columns import columns_of
from stratagem._src.data.sources.blocks import BlockStream
from stratagem._src.data.sources.files import FileFormat
from stratagem._src.data.structure import map_structure
from stratagem._src.data.tensor_spec import STRING, TensorSpec, as_dtype

__all__ = ["CsvFormat"]


class CsvFormat(FileFormat):
    """Reads rows as dicts from column name to value.

    Args:
        columns: The columns to read; all for ``None``.
        column_names: The names, if the first line does not contain them.
        column_types: Types by name; the others are inferred from the first block of a file.
        delimiter: The character between values.
    """

    def __init__(
        self,
        columns: Sequence[str] | None,
        column_names: Sequence[str] | None,
        column_types: dict[str, Any] | None,
        delimiter: str,
    ) -> None:
        self._columns = None if columns is None else list(columns)
        self._column_names = None if column_names is None else list(column_names)
        self._column_types = {name: as_dtype(kind) for name, kind in (column_types or {}).items()}
        self._delimiter = delimiter

    def element_spec(self, path: str) -> Any:
        """Returns the specs of the columns."""
        for block in self._blocks(path, 0):
            return map_structure(lambda leaf: TensorSpec((), leaf.dtype), block)
        raise InvalidArgumentError(f"{path} has no rows, so the types of its columns are unknown.")

    def open(self, path: str) -> Stream:
        """Starts a pass over the rows."""
        return BlockStream(lambda start: self._blocks(path, start))

    def _blocks(self, path: str, start: int) -> Iterator[Any]:
        import pyarrow as pa

        first = 0
        try:
            with self._reader(path) as reader:
                for batch in reader:
                    skipped = min(batch.num_rows, max(0, start - first))
                    if skipped < batch.num_rows:
                        yield columns_of(batch.slice(skipped), path, first + skipped)
                    first += batch.num_rows
        except FileNotFoundError:
            raise NotFoundError(f"There is no file {path}.") from None
        except (pa.ArrowException, KeyError) as error:
            raise DataLossError(
                f"{path}: the rows from {first} on cannot be parsed: {error}. Pass column_types= if a "
                "column has another type further down."
            ) from error

    def _reader(self, path: str) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        types = {
            name: pa.binary() if kind == STRING else pa.from_numpy_dtype(kind)
            for name, kind in self._column_types.items()
        }
        return csv.open_csv(
            path,
            read_options=csv.ReadOptions(column_names=self._column_names),
            parse_options=csv.ParseOptions(delimiter=self._delimiter),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=self._columns, strings_can_be_null=False
            ),
        )
