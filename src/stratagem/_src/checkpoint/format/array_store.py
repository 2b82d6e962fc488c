"""The arrays of a checkpoint, as Orbax stores them: Zarr arrays in TensorStore's key-value store OCDBT.

Every chunk has a checksum of its own, and so have the nodes of the key-value store that say where it is.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.checkpoint.format.chunks import chunk_boxes, chunk_shape
from stratagem._src.checkpoint.format.corruption import damage_error, shortened
from stratagem._src.checkpoint.format.library import tensorstore
from stratagem._src.core.errors import InvalidArgumentError

__all__ = [
    "MANIFEST_FILE",
    "ArrayOnDisk",
    "ArrayWriter",
    "array_context",
    "merge_parts",
    "part_directory",
]

Array = np.ndarray[Any, Any]

_PART = "ocdbt.process_"
MANIFEST_FILE = "manifest.ocdbt"
_MOST_BYTES_ON_THE_WAY = 64 << 20
_SECONDS_BETWEEN_SIGNS = 1.0
_SMALL_BYTES = 1 << 20
_CACHED_NODES_BYTES = 100 << 20


def part_directory(directory: Path, part: str) -> Path:
    """Returns where one process writes its part of the checkpoint in ``directory``."""
    return directory / f"{_PART}{part}"


class ArrayWriter:
    """Writes arrays, or rows of them, into one key-value store.

    Args:
        directory: The store's: of a checkpoint, or of one process's part of it.
        show_sign: Called again and again while it waits for the disk.
    """

    def __init__(self, directory: Path, show_sign: Callable[[], None] = lambda: None) -> None:
        self._directory = directory
        self._show_sign = show_sign
        self._context = array_context()
        # What is small, and what describes the arrays, is written at one moment, into one file.
        self._small = tensorstore().Transaction(atomic=True)
        self._on_the_way: list[tuple[Any, int, str]] = []
        self._opened: dict[tuple[str, bool], Any] = {}
        self._num_bytes = 0
        self._has_written = False

    def write(
        self, name: str, shape: Sequence[int], dtype: np.dtype[Any], begin: int, rows: Array
    ) -> None:
        """Begins to write consecutive rows of an array, which nobody may change until ``finish``.

        Args:
            name: The array's key.
            shape: Its whole shape.
            dtype: Its element type.
            begin: The first of the rows; it is the first of a chunk, too.
            rows: The rows; everything of an array without any.
        """
        self._has_written = True
        rows = np.asarray(rows, dtype)
        is_small = rows.nbytes <= _SMALL_BYTES
        array = self._create(name, tuple(shape), np.dtype(dtype), is_small)
        target = array[begin : begin + len(rows)].translate_to[0] if shape else array
        # A future of several chunks is done when the first one fails, and the others are not.
        for box in chunk_boxes(rows.shape, chunk_shape(shape, rows.itemsize)):
            part = rows[box]
            future = target[box].write(part, can_reference_source_data_indefinitely=True)
            self._on_the_way.append((future.copy if is_small else future.commit, part.nbytes, name))
            self._num_bytes += part.nbytes
            while self._num_bytes > _MOST_BYTES_ON_THE_WAY:
                self._wait_for_first()

    def finish(self) -> bool:
        """Waits until everything is on the disk; returns whether anything was written.

        Raises:
            OSError: If it cannot be written.
        """
        while self._on_the_way:
            self._wait_for_first()
        small, self._small = self._small, tensorstore().Transaction(atomic=True)
        self._opened.clear()
        self._on_the_way.append((small.commit_async(), 0, "small arrays"))
        self._wait_for_first()
        return self._has_written

    def _wait_for_first(self) -> None:
        future, num_bytes, name = self._on_the_way.pop(0)
        self._num_bytes -= num_bytes
        while True:
            try:
                future.result(timeout=_SECONDS_BETWEEN_SIGNS)
                return
            except TimeoutError:
                self._show_sign()
            except Exception as error:
                self._let_others_end()
                raise _cannot_write(self._directory, name, error) from error

    def _let_others_end(self) -> None:
        """Waits for what is on its way: it would appear in a directory that is removed meanwhile."""
        while self._on_the_way:
            future, _, _ = self._on_the_way.pop(0)
            while not future.done():
                with contextlib.suppress(Exception):
                    future.result(timeout=_SECONDS_BETWEEN_SIGNS)
                self._show_sign()
        self._num_bytes = 0

    def _create(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], is_small: bool
    ) -> Any:
        if (name, is_small) not in self._opened:
            spec = self._specification(name, shape, dtype)
            # What describes it goes with what is small: alone, it would wait for the disk before its rows.
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
                    f"{name!r} has elements of type {dtype.name}, which Zarr arrays cannot have. Leave it "
                    "out of the Checkpoint, or save it as another type."
                ) from error
            raise _cannot_write(self._directory, name, error) from error


def merge_parts(directory: Path, parts: Sequence[str]) -> None:
    """Makes one key-value store of those that processes have written, to whose data it refers.

    Raises:
        OSError: If it cannot be written.
    """
    ts, context = tensorstore(), array_context()
    try:
        new = {**_key_value_store(directory), **_NEW_STORE}
        store = ts.KvStore.open(new, context=context).result()
        transaction = ts.Transaction(atomic=True)
        for part in parts:
            if not (part_directory(directory, part) / MANIFEST_FILE).exists():
                raise FileNotFoundError(
                    f"what process {part} has written cannot be seen here. Give a path that leads to the "
                    "same directory everywhere, also on parameter servers."
                )
            spec = _key_value_store(part_directory(directory, part))
            part_store = ts.KvStore.open(spec, context=context).result()
            part_store.experimental_copy_range_to(store.with_transaction(transaction)).result()
        transaction.commit_async().result()
    except Exception as error:
        raise _cannot_write(directory, MANIFEST_FILE, error) from error


class ArrayOnDisk:
    """An array of a checkpoint, of which only what is asked for is read.

    Args:
        directory: The checkpoint's.
        name: The array's key.
        context: What TensorStore shares between arrays, from ``array_context``.
        zarr3: Whether it is a Zarr array of version 3, not 2.
        in_store: Whether it is in the key-value store of all arrays, not in a directory of its own.

    Raises:
        DataLossError: In all methods, if a file is missing or not what was written.
    """

    def __init__(
        self, directory: Path, name: str, context: Any, *, zarr3: bool = True, in_store: bool = True
    ) -> None:
        self._directory = directory
        self._name = name
        self._zarr3, self._in_store = zarr3, in_store
        if in_store:
            store = {**_key_value_store(directory), "path": f"{name}/"}
        else:
            store = {"driver": "file", "path": f"{directory.absolute() / name}/"}
        spec = {
            "driver": "zarr3" if zarr3 else "zarr",
            "kvstore": store,
            "recheck_cached_metadata": False,
            "recheck_cached_data": False,
            # An array whose chunks are missing would be zeros otherwise.
            "fill_missing_data_reads": False,
        }
        self._opening = tensorstore().open(spec, read=True, context=context)
        self._reading: Any = None

    @property
    def place(self) -> dict[str, Any]:
        """Where it is, for ``at`` in another process."""
        directory = str(self._directory.absolute())
        place = {"directory": directory, "name": self._name}
        return {**place, "zarr3": self._zarr3, "in_store": self._in_store}

    @classmethod
    def at(cls, place: Mapping[str, Any], context: Any) -> ArrayOnDisk:
        """Returns the array at a place; ``context`` as for the class."""
        return cls(context=context, **{**place, "directory": Path(place["directory"])})

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self._array().shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return np.dtype(self._array().dtype.numpy_dtype)

    def begin(self) -> None:
        """Begins to read all of it, for ``whole``."""
        if self._reading is None:
            self._reading = self._array().read()

    def whole(self) -> Array:
        """Returns the array."""
        self.begin()
        reading, self._reading = self._reading, None
        return self._result(reading)

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows; everything of a scalar, and with ``end`` -1."""
        if end == -1 or not self.shape:
            return self.whole()
        return self._result(self._array()[begin:end].read())

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Reads rows, by default all, without holding more than a few of them."""
        if not self.shape or not math.prod(self.shape):
            self.whole()
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
            raise damage_error(self._directory, self._name, error) from error


def _key_value_store(directory: Path) -> dict[str, Any]:
    files = {"driver": "file", "path": f"{directory.absolute()}/"}
    return {"driver": "ocdbt", "base": files}


# What describes an array is kept in the nodes, which have checksums.
_NEW_STORE = {"config": {"max_inline_value_bytes": 4096}}


def array_context() -> Any:
    """Returns what TensorStore shares between the arrays of one checkpoint, as the nodes it has read."""
    return tensorstore().Context({"cache_pool#ocdbt": {"total_bytes_limit": _CACHED_NODES_BYTES}})


def _cannot_write(directory: Path, name: str, error: Exception) -> OSError:
    return OSError(f"Cannot write {name!r} of the checkpoint in {directory}: {shortened(error)}")
