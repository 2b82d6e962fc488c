"""The arrays of a checkpoint in the Orbax format: Zarr arrays in TensorStore's key-value store OCDBT.

Every chunk has a checksum, and so have the B-tree nodes of the key-value store that locate it.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stratagem._src.checkpoint.format.checkpoint_path import (
    CheckpointPath,
    checkpoint_path,
    files_of,
)
from stratagem._src.checkpoint.format.chunks import chunk_boxes, chunk_shape
from stratagem._src.checkpoint.format.object_path import RETRIES
from stratagem._src.checkpoint.format.tensorstore_loader import short_message, tensorstore
from stratagem._src.core.errors import DataLossError, InvalidArgumentError

__all__ = [
    "MANIFEST_FILE",
    "ArrayOnDisk",
    "ArrayWriter",
    "array_context",
    "merge_parts",
    "part_directory",
    "part_name",
]

Array = np.ndarray[Any, Any]

_PART = "ocdbt.process_"
MANIFEST_FILE = "manifest.ocdbt"
_MAX_PENDING_BYTES = 64 << 20
_HEARTBEAT_INTERVAL_SECONDS = 1.0
_SMALL_BYTES = 1 << 20
_CACHED_NODES_BYTES = 100 << 20


def part_directory(directory: CheckpointPath, part: str) -> CheckpointPath:
    """Returns the directory of one process's part of the checkpoint in ``directory``."""
    return directory / part_name(part)


def part_name(part: str) -> str:
    """Returns the name of the directory of one process's part."""
    return f"{_PART}{part}"


class ArrayWriter:
    """Writes arrays, or rows of them, into one key-value store.

    Args:
        directory: The store's directory: a checkpoint, or one process's part of it.
        send_heartbeat: Called about once a second while it waits for the disk.
    """

    def __init__(
        self, directory: CheckpointPath, send_heartbeat: Callable[[], None] = lambda: None
    ) -> None:
        self._directory = directory
        self._send_heartbeat = send_heartbeat
        self._context = array_context()
        # Small arrays and all array metadata are written in one transaction, into one file.
        self._small = tensorstore().Transaction(atomic=True)
        self._pending: list[tuple[Any, int, str]] = []
        self._opened: dict[tuple[str, bool], Any] = {}
        self._num_bytes = 0
        self._has_written = False

    def write(
        self, name: str, shape: Sequence[int], dtype: np.dtype[Any], begin: int, rows: Array
    ) -> None:
        """Starts to write consecutive rows of an array; ``rows`` must not change until ``finish``.

        Args:
            name: The array's key.
            shape: The shape of the full array.
            dtype: Its dtype.
            begin: The first row; it must be the first row of a chunk.
            rows: The rows; the full value of a scalar.
        """
        self._has_written = True
        rows = np.asarray(rows, dtype)
        is_small = rows.nbytes <= _SMALL_BYTES
        array = self._create(name, tuple(shape), np.dtype(dtype), is_small)
        target = array[begin : begin + len(rows)].translate_to[0] if shape else array
        # One future per chunk: a future of several chunks is done when the first one fails, while the
        # others are still being written.
        for box in chunk_boxes(rows.shape, chunk_shape(shape, rows.itemsize)):
            part = rows[box]
            future = target[box].write(part, can_reference_source_data_indefinitely=True)
            self._pending.append((future.copy if is_small else future.commit, part.nbytes, name))
            self._num_bytes += part.nbytes
            while self._num_bytes > _MAX_PENDING_BYTES:
                self._wait_for_first()

    def finish(self) -> bool:
        """Waits until everything is on disk; returns whether anything was written.

        Raises:
            OSError: If writing fails.
        """
        while self._pending:
            self._wait_for_first()
        small, self._small = self._small, tensorstore().Transaction(atomic=True)
        self._opened.clear()
        self._pending.append((small.commit_async(), 0, "small arrays"))
        self._wait_for_first()
        return self._has_written

    def _wait_for_first(self) -> None:
        future, num_bytes, name = self._pending.pop(0)
        self._num_bytes -= num_bytes
        while True:
            try:
                future.result(timeout=_HEARTBEAT_INTERVAL_SECONDS)
                return
            except TimeoutError:
                self._send_heartbeat()
            except Exception as error:
                self._drain()
                raise _write_error(self._directory, name, error) from error

    def _drain(self) -> None:
        """Waits for pending writes after an error: they would reappear in a directory that is removed."""
        while self._pending:
            future, _, _ = self._pending.pop(0)
            while not future.done():
                with contextlib.suppress(Exception):
                    future.result(timeout=_HEARTBEAT_INTERVAL_SECONDS)
                self._send_heartbeat()
        self._num_bytes = 0

    def _create(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], is_small: bool
    ) -> Any:
        if (name, is_small) not in self._opened:
            spec = self._specification(name, shape, dtype)
            # The metadata joins the transaction of small arrays: written alone, it would have to be on disk
            # before the rows.
            array = self._open(name, dtype, {**spec, "create": True}, self._small)
            if not is_small:
                array = self._open(name, dtype, {**spec, "assume_metadata": True}, None)
            self._opened[name, is_small] = array
        return self._opened[name, is_small]

    def _specification(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> dict[str, Any]:
        endian = {"endian": "little"}
        codecs = [{"name": "bytes", "configuration": endian}, {"name": "crc32c"}]
        chunk = chunk_shape(shape, dtype.itemsize)
        grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
        return {
            "driver": "zarr3",
            "kvstore": {**_key_value_store(self._directory), **_NEW_STORE, "path": f"{name}/"},
            "metadata": {"shape": list(shape), "chunk_grid": grid, "codecs": codecs},
            "dtype": dtype.name,
            "open": True,
            "store_data_equal_to_fill_value": True,
            "recheck_cached_metadata": False,
            "recheck_cached_data": False,
        }

    def _open(
        self, name: str, dtype: np.dtype[Any], spec: Mapping[str, Any], transaction: Any
    ) -> Any:
        try:
            opening = tensorstore().open(spec, context=self._context, transaction=transaction)
            return opening.result()
        except Exception as error:
            if "data type" in str(error):
                raise InvalidArgumentError(
                    f"{name!r} has the dtype {dtype.name}, which Zarr does not support. Remove it from the "
                    "Checkpoint, or save it as another dtype."
                ) from error
            raise _write_error(self._directory, name, error) from error


def merge_parts(directory: CheckpointPath, parts: Sequence[str]) -> None:
    """Merges the key-value stores of several processes into one, which refers to their data files.

    Raises:
        OSError: If writing fails.
    """
    ts, context = tensorstore(), array_context()
    try:
        new = {**_key_value_store(directory), **_NEW_STORE}
        store = ts.KvStore.open(new, context=context).result()
        transaction = ts.Transaction(atomic=True)
        for part in parts:
            if not (part_directory(directory, part) / MANIFEST_FILE).exists():
                raise FileNotFoundError(
                    f"the part of process {part} is not visible here. Use a path on a file system that all "
                    "processes share, including parameter servers."
                )
            spec = _key_value_store(part_directory(directory, part))
            part_store = ts.KvStore.open(spec, context=context).result()
            part_store.experimental_copy_range_to(store.with_transaction(transaction)).result()
        transaction.commit_async().result()
    except Exception as error:
        raise _write_error(directory, MANIFEST_FILE, error) from error


class ArrayOnDisk:
    """An array of a checkpoint that is read lazily, by rows.

    Args:
        directory: The checkpoint's directory.
        name: The array's key.
        context: The TensorStore context, from ``array_context``.
        zarr3: Whether the format is Zarr version 3, not 2.
        in_store: Whether it is in the checkpoint's key-value store, not in its own directory.

    Raises:
        DataLossError: In all methods, if a file is missing or corrupt.
    """

    def __init__(
        self,
        directory: CheckpointPath,
        name: str,
        context: Any,
        *,
        zarr3: bool = True,
        in_store: bool = True,
    ) -> None:
        self._directory = directory
        self._name = name
        self._zarr3, self._in_store = zarr3, in_store
        if in_store:
            store = {**_key_value_store(directory), "path": f"{name}/"}
        else:
            store = files_of(directory / name)
        spec = {
            "driver": "zarr3" if zarr3 else "zarr",
            "kvstore": store,
            "recheck_cached_metadata": False,
            "recheck_cached_data": False,
            # Otherwise missing chunks would be read as zeros.
            "fill_missing_data_reads": False,
        }
        self._opening = tensorstore().open(spec, read=True, context=context)
        self._reading: Any = None

    @property
    def place(self) -> dict[str, Any]:
        """Its location, for ``at`` in another process."""
        directory = str(self._directory.absolute())
        place = {"directory": directory, "name": self._name}
        return {**place, "zarr3": self._zarr3, "in_store": self._in_store}

    @classmethod
    def at(cls, place: Mapping[str, Any], context: Any) -> ArrayOnDisk:
        """Returns the array at a location; ``context`` as for the class."""
        return cls(context=context, **{**place, "directory": checkpoint_path(place["directory"])})

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self._array().shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype."""
        return np.dtype(self._array().dtype.numpy_dtype)

    def start_read(self) -> None:
        """Starts to read the full array asynchronously, for ``read``."""
        if self._reading is None:
            self._reading = self._array().read()

    def read(self) -> Array:
        """Returns the full array."""
        self.start_read()
        reading, self._reading = self._reading, None
        return self._result(reading)

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows; the full array if ``end`` is -1 or it is a scalar."""
        if end == -1 or not self.shape:
            return self.read()
        return self._result(self._array()[begin:end].read())

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Reads rows chunk by chunk, by default all, and discards them."""
        if not self.shape or not math.prod(self.shape):
            self.read()
            return
        end = self.shape[0] if end == -1 else end
        step = chunk_shape(self.shape, self.dtype.itemsize)[0]
        for first in range(begin, end, step):
            self.rows(first, min(end, first + step))

    def _array(self) -> Any:
        return self._result(self._opening)

    def _result(self, future: Any) -> Any:
        try:
            return future.result()
        except (ValueError, OSError) as error:
            raise _corruption_error(self._directory, self._name, error) from error


def _key_value_store(directory: CheckpointPath) -> dict[str, Any]:
    return {"driver": "ocdbt", "base": files_of(directory)}


# Array metadata is stored inline in the B-tree nodes, which have checksums.
_NEW_STORE = {"config": {"max_inline_value_bytes": 4096}}


def array_context() -> Any:
    """Returns a TensorStore context that the arrays of one checkpoint share; it caches B-tree nodes."""
    cached = {"total_bytes_limit": _CACHED_NODES_BYTES}
    return tensorstore().Context({"cache_pool#ocdbt": cached, **RETRIES})


def _write_error(directory: CheckpointPath, name: str, error: Exception) -> OSError:
    return OSError(
        f"Cannot write {name!r} of the checkpoint in {directory}: {short_message(error)}"
    )


def _corruption_error(directory: CheckpointPath, array: str, error: Exception) -> DataLossError:
    """Returns an error that describes TensorStore's error, with the file that caused it.

    Args:
        directory: The checkpoint's directory.
        array: The key of the array that was being read.
        error: TensorStore's error.
    """
    text = short_message(error)
    key = re.search(r'Error reading "([^"]*)" in OCDBT', text)
    file = None
    if key and not re.search(r'local file "[^"]*[^/"]"', text):
        with contextlib.suppress(ValueError, OSError, KeyError, IndexError):
            file = _file_of(directory, key[1].encode())
    where = f"the file {file} is" if file is not None else "a file is"
    return DataLossError(
        f"The array {array!r} of the checkpoint {directory} cannot be read, because {where} corrupt or "
        f"missing: {text}"
    )


def _file_of(directory: CheckpointPath, key: bytes) -> CheckpointPath:
    """Returns the file that holds the value of a key, by a walk down the OCDBT B-tree."""
    store = tensorstore().KvStore.open(files_of(directory)).result()
    dump = tensorstore().ocdbt.dump
    location = dump(store).result()["versions"][-1]["root"]["location"]
    prefix = b""
    while True:
        node = dump(store, node=location).result()
        before = [e for e in node["entries"] if prefix + _first_key(e) <= key]
        entry = before[-1]
        if not node["height"]:
            _, base, file, *_ = entry["indirect_value"].split(":")
            return directory / base / file
        prefix += entry.get("subtree_common_prefix", b"")
        location = entry["location"]


def _first_key(entry: Any) -> bytes:
    first: bytes = entry["key"]
    return first
