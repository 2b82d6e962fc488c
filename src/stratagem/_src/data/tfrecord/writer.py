"""``TFRecordWriter``: writes records with checksums to a file."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.compressed_files import as_path, check_compression
from stratagem._src.data.tfrecord.record_format import encode_record
from stratagem._src.process.fork import ProcessOwner, discard_buffers_in_child

__all__ = ["TFRecordOptions", "TFRecordWriter"]

_DEFAULT_COMPRESSION_LEVEL = 6


@dataclass(frozen=True)
class TFRecordOptions:
    """How a TFRecord file is written.

    >>> from stratagem.io import TFRecordOptions
    >>> TFRecordOptions("GZIP").compression_type
    'GZIP'

    Args:
        compression_type: ``None``, ``"GZIP"`` or ``"ZLIB"``.
        compression_level: 0 to 9; 6 by default.
    """

    compression_type: str | None = None
    compression_level: int | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression_type)
        level = self.compression_level
        if level is not None and level not in range(10):
            raise InvalidArgumentError(f"compression_level must be in 0 to 9, got {level}.")


class TFRecordWriter:
    """Writes records to a file that ``TFRecordDataset`` and TensorFlow read.

    >>> import tempfile
    >>> from stratagem.io import TFRecordWriter
    >>> with TFRecordWriter(tempfile.mkdtemp() + "/file.tfrecord") as writer:
    ...     writer.write(b"a record")

    Args:
        path: The file; an existing one is replaced.
        options: ``TFRecordOptions``, or the name of a compression.
    """

    def __init__(self, path: Any, options: TFRecordOptions | str | None = None) -> None:
        chosen = options if isinstance(options, TFRecordOptions) else TFRecordOptions(options)
        self._path = as_path(path)
        self._owner = ProcessOwner("a TFRecordWriter")
        self._file: Any = _open(self._path, chosen)

    def write(self, record: bytes) -> None:
        """Writes one record.

        Raises:
            InvalidArgumentError: If it is not ``bytes``, or the writer is closed.
        """
        if not isinstance(record, bytes):
            raise InvalidArgumentError(
                f"A record must be bytes, got {type(record).__name__}. Use text.encode() or "
                "message.SerializeToString()."
            )
        self._owner.check()
        if self._file is None:
            raise InvalidArgumentError(f"{self._path}: the writer is closed.")
        self._file.write(encode_record(record))

    def flush(self) -> None:
        """Flushes buffered records to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _open(path: str, options: TFRecordOptions) -> Any:
    level = _DEFAULT_COMPRESSION_LEVEL
    if options.compression_level is not None:
        level = options.compression_level
    if options.compression_type == "GZIP":
        compressed = gzip.open(path, "wb", compresslevel=level)  # noqa: SIM115
        discard_buffers_in_child(compressed)
        return compressed
    file = Path(path).open("wb")  # noqa: SIM115
    discard_buffers_in_child(file)
    return _ZlibWriter(file, level) if options.compression_type == "ZLIB" else file


class _ZlibWriter:
    def __init__(self, file: BinaryIO, level: int) -> None:
        self._file = file
        self._deflate = zlib.compressobj(level)

    def write(self, data: bytes) -> None:
        self._file.write(self._deflate.compress(data))

    def flush(self) -> None:
        self._file.write(self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        self._file.write(self._deflate.flush())
        self._file.close()
