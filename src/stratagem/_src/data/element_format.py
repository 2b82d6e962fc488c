"""Serializes the leaves of an element to bytes, for files and iterator states; no code is ever executed.

A record is the length of the header (4 bytes, little endian), the header in JSON with one
``[dtype, shape, size]`` per leaf, and the raw data of all leaves. For strings the dtype is ``"string"``,
and the size is the list of their lengths.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.dataset_base import DatasetBase
from stratagem._src.data.tensor_spec import STRING

__all__ = ["decode_leaves", "dtype_named", "encode_leaves"]


def encode_leaves(leaves: list[Any]) -> bytes:
    """Returns the leaves of an element as bytes.

    Raises:
        InvalidArgumentError: If a leaf is a dataset.
    """
    header: list[Any] = []
    parts: list[bytes] = []
    for leaf in leaves:
        if isinstance(leaf, DatasetBase):
            raise InvalidArgumentError(
                "An element that contains a dataset, such as a window, cannot be saved. Use "
                "flat_map(lambda window: window.batch(size)) first."
            )
        array = np.asarray(leaf, STRING) if isinstance(leaf, bytes) else np.asarray(leaf)
        if array.dtype == STRING:
            items = list(array.flat)
            header.append(["string", array.shape, [len(item) for item in items]])
            parts.extend(items)
        else:
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            header.append([native.dtype.name, native.shape, native.nbytes])
            parts.append(native.tobytes())
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def decode_leaves(record: bytes) -> list[Any]:
    """Returns the leaves from the bytes of ``encode_leaves``."""
    start = 4 + int.from_bytes(record[:4], "little")
    leaves: list[Any] = []
    for kind, shape, size in json.loads(record[4:start]):
        if kind == "string":
            array = np.empty(shape, STRING)
            flat = array.reshape(-1)
            for position, length in enumerate(size):
                flat[position] = record[start : start + length]
                start += length
        else:
            data = record[start : start + size]
            array = np.frombuffer(data, dtype_named(kind)).reshape(shape).copy()
            start += size
        leaves.append(array[()] if array.ndim == 0 else array)
    return leaves


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype of a name, including those that ``ml_dtypes`` adds to NumPy."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
