"""``tf.io``: reading and writing files, and decoding bytes, on the host."""

from __future__ import annotations

import base64
import binascii
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, PathLike, StringLike
from stratagem._src.tensorflow_api import gfile
from stratagem._src.tensorflow_api.conversion import as_dtype, strings
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = [
    "decode_base64",
    "decode_compressed",
    "decode_csv",
    "decode_raw",
    "encode_base64",
    "map_strings",
    "matching_files",
    "read_file",
    "write_file",
]


def map_strings(op: str, value: StringLike, function: Callable[[bytes], Any]) -> HostTensor:
    """Applies a function to each string of an array."""
    array = strings(op, value)
    made = np.empty(array.shape, np.object_)
    for index in np.ndindex(array.shape):
        made[index] = function(array[index].item())
    return HostTensor.of(made)


def read_file(filename: PathLike, name: str | None = None) -> HostTensor:
    """Returns the bytes of a file.

    >>> read_file("/nowhere")
    Traceback (most recent call last):
    ...
    stratagem.errors.NotFoundError: /nowhere: no such file or directory.
    """

    def content(path: bytes) -> Any:
        with gfile.GFile(path, "rb") as file:
            return file.read()

    return map_strings("io.read_file", _path(filename), content)


def _path(filename: PathLike) -> Any:
    return filename if isinstance(filename, np.ndarray) else gfile.text_path(filename)


def write_file(filename: PathLike, contents: StringLike, name: str | None = None) -> None:
    """Writes bytes to a file, and creates its directory if needed.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "new", "file")
    >>> write_file(path, "text")
    >>> read_file(path).numpy()
    b'text'
    """
    path = gfile.text_path(filename)
    content = strings("io.write_file", contents).item()
    folder = path.rpartition("/")[0]
    if folder and not folder.endswith(":/"):
        gfile.makedirs(folder)
    with gfile.GFile(path, "wb") as file:
        file.write(content)


def matching_files(pattern: StringLike, name: str | None = None) -> HostTensor:
    """Returns the paths of the files that match a pattern, sorted.

    >>> matching_files("/nowhere*").shape
    (0,)
    """
    patterns = strings("io.matching_files", pattern).ravel().tolist()
    found = sorted(path.encode() for path in gfile.glob(patterns) if not gfile.isdir(path))
    made = np.empty(len(found), np.object_)
    made[:] = found
    return HostTensor.of(made)


def decode_raw(
    input_bytes: StringLike,
    out_type: DTypeLike,
    little_endian: bool = True,
    fixed_length: int | None = None,
    name: str | None = None,
) -> HostTensor:
    """Reinterprets bytes as numbers, along a new last dimension.

    >>> decode_raw(b"\\x01\\x00\\x02\\x00", "int16")
    HostTensor([1, 2], dtype=int16)

    Args:
        input_bytes: Strings of equal length.
        out_type: The dtype of the numbers.
        little_endian: Whether the bytes are little-endian.
        fixed_length: The number of bytes to truncate or zero-pad each string to.
        name: Ignored.
    """
    dtype = as_dtype(out_type)
    if is_host_only(dtype):
        raise InvalidArgumentError(
            f"out_type of tf.io.decode_raw must be a numeric dtype, got {out_type}."
        )
    array = strings("io.decode_raw", input_bytes)
    items: list[bytes] = np.asarray(array).ravel().tolist()
    if fixed_length is not None:
        if fixed_length <= 0 or fixed_length % dtype.itemsize:
            raise InvalidArgumentError(
                f"fixed_length of tf.io.decode_raw must be a positive multiple of {dtype.itemsize}, got "
                f"{fixed_length}."
            )
        items = [item[:fixed_length].ljust(fixed_length, b"\0") for item in items]
    lengths = {len(item) for item in items}
    if len(lengths) > 1 or (lengths and next(iter(lengths)) % dtype.itemsize):
        raise InvalidArgumentError(
            f"tf.io.decode_raw needs strings of equal length, a multiple of {dtype.itemsize}, got lengths "
            f"{sorted(lengths)}."
        )
    swapped = dtype if little_endian or dtype.itemsize == 1 else dtype.newbyteorder(">")
    found = np.frombuffer(b"".join(items), swapped).astype(dtype)
    width = lengths.pop() // dtype.itemsize if lengths else 0
    return HostTensor.of(found.reshape(*array.shape, width))


def decode_compressed(
    bytes: StringLike, compression_type: str = "", name: str | None = None
) -> HostTensor:
    """Decompresses strings that are compressed with ``"ZLIB"`` or ``"GZIP"``.

    >>> decode_compressed(zlib.compress(b"text"), "ZLIB").numpy()
    b'text'
    """
    ways: dict[str, Callable[[Any], Any]] = {
        "": lambda data: data,
        "ZLIB": zlib.decompress,
        "GZIP": gzip.decompress,
    }
    if compression_type not in ways:
        raise InvalidArgumentError(
            f"compression_type must be '', 'ZLIB' or 'GZIP', got {compression_type!r}."
        )

    def opened(data: Any) -> Any:
        try:
            return ways[compression_type](data)
        except (zlib.error, OSError, EOFError) as error:
            raise InvalidArgumentError(f"tf.io.decode_compressed: {error}.") from None

    return map_strings("io.decode_compressed", bytes, opened)


def encode_base64(input: StringLike, pad: bool = False, name: str | None = None) -> HostTensor:
    """Encodes strings as URL-safe base64.

    >>> encode_base64("text").numpy(), encode_base64("text", pad=True).numpy()
    (b'dGV4dA', b'dGV4dA==')
    """

    def encoded(data: bytes) -> Any:
        found = base64.urlsafe_b64encode(data)
        return found if pad else found.rstrip(b"=")

    return map_strings("io.encode_base64", input, encoded)


def decode_base64(input: StringLike, name: str | None = None) -> HostTensor:
    """Decodes URL-safe base64.

    >>> decode_base64("dGV4dA").numpy()
    b'text'
    """

    def decoded(data: bytes) -> Any:
        core = data.rstrip(b"=")
        try:
            return base64.b64decode(core + b"=" * (-len(core) % 4), b"-_", validate=True)
        except binascii.Error as error:
            raise InvalidArgumentError(f"tf.io.decode_base64: {error}, got {data!r}.") from None

    return map_strings("io.decode_base64", input, decoded)


def decode_csv(
    records: StringLike,
    record_defaults: Sequence[ArrayLike],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    name: str | None = None,
) -> list[HostTensor]:
    """Parses CSV records into columns, each an array with the dtype of its default.

    >>> decode_csv(["1,a", ",b"], [7, "none"])[0]
    HostTensor([1, 7], dtype=int32)

    Args:
        records: Strings of one line each.
        record_defaults: The value of an empty field, for each column. An empty array of a dtype marks a
            required field.
        field_delim: The separator of fields.
        use_quote_delim: Whether quotation marks may enclose a field.
        na_value: A field that counts as empty.
        select_cols: The indices of the columns to return, in ascending order; default: all.
        name: Ignored.
    """
    array = strings("io.decode_csv", records)
    defaults = [_default(one) for one in record_defaults]
    columns = [np.empty(array.shape, default.dtype) for default in defaults]
    quoting: Any = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE
    for index in np.ndindex(array.shape):
        line = array[index].item().decode("utf-8", "surrogateescape")
        rows = list(
            csv.reader(io.StringIO(line, newline=""), delimiter=field_delim, quoting=quoting)
        )
        fields = rows[0] if rows else [""]
        if select_cols is not None:
            fields = [fields[place] for place in select_cols if place < len(fields)]
        if len(rows) > 1 or len(fields) != len(defaults):
            raise InvalidArgumentError(
                f"tf.io.decode_csv expects {len(defaults)} fields in a record, got {line!r}."
            )
        for column, default, field in zip(columns, defaults, fields, strict=True):
            column[index] = _field(field, default, na_value)
    return [HostTensor.of(column) for column in columns]


def _default(value: ArrayLike) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind in "SU":
        array = np.asarray(value, np.object_)
    if not hasattr(value, "dtype"):
        array = array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))
    if array.size > 1:
        raise InvalidArgumentError(
            f"A default of tf.io.decode_csv must be one value, got {value!r}."
        )
    return array.reshape(-1)


def _field(text: str, default: np.ndarray[Any, Any], na_value: str) -> Any:
    if text in ("", na_value):
        if not default.size:
            raise InvalidArgumentError("tf.io.decode_csv: a required field is empty.")
        found = default[0]
        return found.encode() if isinstance(found, str) else found
    if default.dtype == np.object_:
        return text.encode("utf-8", "surrogateescape")
    try:
        return default.dtype.type(text.strip())
    except ValueError:
        raise InvalidArgumentError(
            f"tf.io.decode_csv: {text!r} is not a {default.dtype.name}."
        ) from None
