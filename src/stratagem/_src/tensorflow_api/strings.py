"""``tf.strings``: functions of strings, which are arrays of bytes on the host."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    DTypeLike,
    IntegerLike,
    Leaf,
    PyTree,
    ShapeLike,
    StringLike,
)
from stratagem._src.data.ragged_tensor import RaggedTensor
from stratagem._src.tensorflow_api.conversion import (
    as_dtype,
    as_tensor,
    axes_of,
    concrete,
    is_complex,
    is_float,
)
from stratagem._src.tensorflow_api.conversion import strings as as_strings
from stratagem._src.tensorflow_api.fingerprint import fingerprint64
from stratagem._src.tensorflow_api.host_tensor import HostTensor
from stratagem._src.tensorflow_api.io_files import map_strings
from stratagem._src.tensorflow_api.printing import format_array

__all__ = [
    "as_string",
    "bytes_split",
    "format",
    "join",
    "length",
    "lower",
    "map_strings_to_rows",
    "ngrams",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "strip",
    "substr",
    "to_hash_bucket_fast",
    "to_number",
    "unsorted_segment_join",
    "upper",
]


def _objects(shape: ShapeLike, items: Sequence[bytes]) -> HostTensor:
    made = np.empty(len(items), np.object_)
    made[:] = items
    return HostTensor.of(made.reshape(shape))


def _items(array: HostTensor) -> list[bytes]:
    found: list[bytes] = np.asarray(array).ravel().tolist()
    return found


def map_strings_to_rows(
    op: str, value: StringLike, function: Callable[[bytes], Any], dtype: DTypeLike = np.object_
) -> Any:
    """Applies a function that returns a list: an array for one string, a ``RaggedTensor`` for a vector."""
    array = as_strings(op, value)
    rows = []
    for item in _items(array):
        found = function(item)
        row = np.empty(len(found), dtype)
        row[:] = found
        rows.append(row)
    if array.ndim == 0:
        return HostTensor.of(rows[0])
    if array.ndim > 1:
        raise InvalidArgumentError(
            f"tf.{op} takes one string or a vector of strings, got shape {array.shape}."
        )
    if not rows:
        return RaggedTensor(np.empty(0, dtype), (np.zeros(1, np.int64),))
    return RaggedTensor.from_rows(rows)


def length(input: StringLike, unit: str = "BYTE", name: str | None = None) -> HostTensor:
    """Returns the length of strings in bytes or characters (``"UTF8_CHAR"``).

    >>> length(["one", "three"])
    HostTensor([3, 5], dtype=int32)
    """
    _check_unit("strings.length", unit)
    array = as_strings("strings.length", input)
    counts = [len(item if unit == "BYTE" else _text(item)) for item in _items(array)]
    return HostTensor.of(np.array(counts, np.int32).reshape(array.shape))


def _check_unit(op: str, unit: str) -> None:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise InvalidArgumentError(f"unit of tf.{op} must be 'BYTE' or 'UTF8_CHAR', got {unit!r}.")


def _text(item: bytes) -> str:
    return item.decode("utf-8", "surrogateescape")


def _data(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def lower(input: StringLike, encoding: str = "", name: str | None = None) -> HostTensor:
    """Converts ASCII letters, or all letters for ``encoding="utf-8"``, to lower case.

    >>> lower("ABC").numpy()
    b'abc'
    """
    _check_encoding("strings.lower", encoding)
    return map_strings(
        "strings.lower", input, lambda s: _data(_text(s).lower()) if encoding else s.lower()
    )


def upper(input: StringLike, encoding: str = "", name: str | None = None) -> HostTensor:
    """Converts ASCII letters, or all letters for ``encoding="utf-8"``, to upper case.

    >>> upper("abc").numpy()
    b'ABC'
    """
    _check_encoding("strings.upper", encoding)
    return map_strings(
        "strings.upper", input, lambda s: _data(_text(s).upper()) if encoding else s.upper()
    )


def _check_encoding(op: str, encoding: str) -> None:
    if encoding not in ("", "utf-8"):
        raise InvalidArgumentError(f"encoding of tf.{op} must be '' or 'utf-8', got {encoding!r}.")


def strip(input: StringLike, name: str | None = None) -> HostTensor:
    """Strips leading and trailing whitespace.

    >>> strip("  a b ").numpy()
    b'a b'
    """
    return map_strings("strings.strip", input, lambda item: item.strip())


def split(
    input: StringLike, sep: StringLike = None, maxsplit: int = -1, name: str | None = None
) -> Any:
    """Splits a string into an array of parts, or a vector of strings into a ``RaggedTensor``.

    >>> split("a b  c").tolist(), split(["a b", "c"]).to_list()
    ([b'a', b'b', b'c'], [[b'a', b'b'], [b'c']])

    Args:
        input: A string, or a vector of them.
        sep: The separator; default: whitespace of any length.
        maxsplit: The maximum number of splits; -1 means no limit.
        name: Ignored.
    """
    between = as_strings("strings.split", "" if sep is None else sep).item() or None
    return map_strings_to_rows("strings.split", input, lambda item: _parts(item, between, maxsplit))


def _parts(item: bytes, between: bytes | None, max_splits: int) -> list[bytes]:
    if between is not None or max_splits <= 0:
        return item.split(between, max_splits if max_splits > 0 else -1)
    found: list[bytes] = []
    rest = item.lstrip()
    while rest:
        word, rest = (*rest.split(None, 1), b"")[:2]
        found.append(word)
        if len(found) == max_splits:
            return [*found, rest]  # even if it is empty, as in TensorFlow
    return found


def bytes_split(input: StringLike, name: str | None = None) -> Any:
    """Splits a string into single bytes, or a vector of strings into a ``RaggedTensor``.

    >>> bytes_split("abc").tolist()
    [b'a', b'b', b'c']
    """
    return map_strings_to_rows(
        "strings.bytes_split", input, lambda item: [item[i : i + 1] for i in range(len(item))]
    )


def join(inputs: Sequence[StringLike], separator: str = "", name: str | None = None) -> HostTensor:
    """Joins the strings of several arrays elementwise.

    >>> join([["a", "b"], "c"], separator="-").tolist()
    [b'a-c', b'b-c']
    """
    arrays = [as_strings("strings.join", one) for one in inputs]
    shapes = {array.shape for array in arrays if array.ndim}
    if len(shapes) > 1:
        raise InvalidArgumentError(
            f"tf.strings.join needs arrays of the same shape, or single strings, got {sorted(shapes)}."
        )
    shape = shapes.pop() if shapes else ()
    columns = [_items(HostTensor.of(np.broadcast_to(array, shape))) for array in arrays]
    return _objects(shape, [separator.encode().join(parts) for parts in zip(*columns, strict=True)])


def reduce_join(
    inputs: StringLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    separator: str = "",
    name: str | None = None,
) -> HostTensor:
    """Joins strings along axes, in the order of ``axis``; along all axes by default.

    >>> reduce_join([["a", "b"], ["c", "d"]], axis=1, separator=" ").tolist()
    [b'a b', b'c d']
    """
    array = np.asarray(as_strings("strings.reduce_join", inputs))
    axes = axes_of("strings.reduce_join", axis, array.ndim)
    inner = axes if axis is None else axes[::-1]
    moved = np.moveaxis(array, inner, range(-len(axes), 0)) if axes else array
    kept = moved.shape[: array.ndim - len(axes)]
    rows = (
        moved.reshape(*kept, -1).reshape(int(np.prod(kept)), -1) if axes else moved.reshape(-1, 1)
    )
    shape = [1 if i in axes else n for i, n in enumerate(array.shape)] if keepdims else kept
    return _objects(shape, [separator.encode().join(row.tolist()) for row in rows])


def unsorted_segment_join(
    inputs: StringLike,
    segment_ids: ArrayLike,
    num_segments: IntegerLike,
    separator: str = "",
    name: str | None = None,
) -> HostTensor:
    """Joins the strings of each segment.

    >>> unsorted_segment_join(["a", "b", "c"], [1, 0, 1], 2, separator=":").tolist()
    [b'b', b'a:c']
    """
    array = as_strings("strings.unsorted_segment_join", inputs)
    numbers = np.asarray(segment_ids)
    if array.ndim != 1 or numbers.shape != array.shape:
        raise InvalidArgumentError(
            "tf.strings.unsorted_segment_join takes a vector and a segment id for each element, got shapes "
            f"{array.shape} and {numbers.shape}."
        )
    parts: list[list[bytes]] = [[] for _ in range(int(num_segments))]
    for item, number in zip(_items(array), numbers.tolist(), strict=True):
        if not 0 <= number < len(parts):
            raise InvalidArgumentError(
                f"segment_ids of tf.strings.unsorted_segment_join must be in [0, {len(parts)}), got "
                f"{number}."
            )
        parts[number].append(item)
    return _objects((len(parts),), [separator.encode().join(part) for part in parts])


def ngrams(
    data: StringLike,
    ngram_width: IntegerLike,
    separator: str = " ",
    pad_values: object = None,
    padding_width: int | None = None,
    preserve_short_sequences: bool = False,
    name: str | None = None,
) -> HostTensor:
    """Returns the n-grams of a vector: each ``ngram_width`` neighboring strings, joined.

    Differs from TensorFlow: it takes one vector and one width, without padding.

    >>> ngrams(["a", "b", "c"], 2).tolist()
    [b'a b', b'b c']
    """
    array = as_strings("strings.ngrams", data)
    if array.ndim != 1 or not isinstance(ngram_width, int) or pad_values is not None:
        raise InvalidArgumentError(
            "tf.strings.ngrams supports a vector and one width, without pad_values, got shape "
            f"{array.shape} and width {ngram_width!r}."
        )
    if ngram_width < 1:
        raise InvalidArgumentError(f"ngram_width must be positive, got {ngram_width}.")
    items = _items(array)
    count = max(len(items) - ngram_width + 1, 0)
    made = [separator.encode().join(items[i : i + ngram_width]) for i in range(count)]
    if not made and items and preserve_short_sequences:
        made = [separator.encode().join(items)]
    return _objects((len(made),), made)


def substr(
    input: StringLike, pos: ArrayLike, len: ArrayLike, unit: str = "BYTE", name: str | None = None
) -> HostTensor:
    """Returns the substring of length ``len`` at ``pos``; a negative ``pos`` counts from the end.

    >>> substr("hello", 1, 3).numpy(), substr("hello", -3, 2).numpy()
    (b'ell', b'll')
    """
    _check_unit("strings.substr", unit)
    given: Any = (np.asarray(as_strings("strings.substr", input)), np.asarray(pos), np.asarray(len))
    array, begin, count = np.broadcast_arrays(*given)
    made = np.empty(array.shape, np.object_)
    for index in np.ndindex(array.shape):
        data: Any = array[index]
        item: Any = data if unit == "BYTE" else _text(data)
        size, place, limit = item.__len__(), int(begin[index]), int(count[index])
        if not -size <= place <= size:
            raise InvalidArgumentError(
                f"pos of tf.strings.substr must be within the string, got {place} for {array[index]!r}."
            )
        place += size if place < 0 else 0
        part = item[place : place + max(limit, 0)]
        made[index] = part if unit == "BYTE" else _data(part)
    return HostTensor.of(made)


@functools.lru_cache(256)
def _expression(pattern: str) -> re.Pattern[str]:
    """Translates an RE2 pattern to Python's ``re``, and rejects what Python does not support."""
    if re.search(r"\[\[:\^?\w+:\]|\\[pPCzQ]", pattern):
        raise InvalidArgumentError(
            f"The pattern {pattern!r} has an RE2 character class that Python's re does not support, such "
            "as "
            r"[[:alpha:]] or \p{L}. Write out its characters."
        )
    made, place, inside = "", 0, False
    while place < len(pattern):
        sign = pattern[place]
        if sign == "\\":
            made += pattern[place : place + 2]
            place += 2
            continue
        if sign == "[" and not inside:
            inside = True
            # A bracket at the start of a character class is one of its characters.
            lead = re.match(r"\[\^?\]?", pattern[place:])
            made += lead[0] if lead else sign
            place += len(lead[0]) if lead else 1
            continue
        if sign == "]":
            inside = False
        # Python's $ also matches before a trailing newline.
        made += r"\Z" if sign == "$" and not inside and "(?m" not in pattern else sign
        place += 1
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return re.compile(made, re.ASCII)
    except re.error as error:
        raise InvalidArgumentError(f"The pattern {pattern!r} is not valid: {error}.") from None


def _pattern(op: str, pattern: StringLike) -> re.Pattern[str]:
    data: bytes = as_strings(op, pattern).item()
    return _expression(_text(data))


def regex_replace(
    input: StringLike,
    pattern: StringLike,
    rewrite: StringLike,
    replace_global: bool = True,
    name: str | None = None,
) -> HostTensor:
    r"""Replaces matches of a pattern; ``\1`` in ``rewrite`` stands for a group.

    Differs from TensorFlow: patterns are those of Python's ``re``, with RE2's meaning of ``$``, ``\d``,
    ``\w`` and ``\s``. RE2-only character classes raise.

    >>> regex_replace("a1b22", "[0-9]+", "_").numpy()
    b'a_b_'
    """
    expression = _pattern("strings.regex_replace", pattern)
    data: bytes = as_strings("strings.regex_replace", rewrite).item()
    new = _text(data)
    template = re.sub(r"\\(\d)", r"\\g<\1>", new)
    count = 0 if replace_global else 1

    def replaced(item: bytes) -> bytes:
        try:
            return _data(expression.sub(template, _text(item), count=count))
        except (re.error, IndexError) as error:
            raise InvalidArgumentError(f"rewrite of tf.strings.regex_replace: {error}.") from None

    return map_strings("strings.regex_replace", input, replaced)


def regex_full_match(input: StringLike, pattern: StringLike, name: str | None = None) -> HostTensor:
    """Returns whether whole strings match a pattern.

    >>> regex_full_match(["a1", "b"], "[a-z][0-9]").tolist()
    [True, False]
    """
    expression = _pattern("strings.regex_full_match", pattern)
    array = as_strings("strings.regex_full_match", input)
    found = [expression.fullmatch(_text(item)) is not None for item in _items(array)]
    return HostTensor.of(np.array(found, np.bool_).reshape(array.shape))


def to_number(
    input: StringLike, out_type: DTypeLike = np.float32, name: str | None = None
) -> HostTensor:
    """Parses strings as numbers.

    >>> to_number(["1.5", "-2"])
    HostTensor([ 1.5, -2. ], dtype=float32)
    """
    array = as_strings("strings.to_number", input)
    dtype = as_dtype(out_type)
    made = np.empty(array.shape, dtype)
    for index in np.ndindex(array.shape):
        text = array[index].item().decode("utf-8", "replace").strip()
        try:
            if "_" in text:
                raise ValueError
            made[index] = float(text) if is_float(dtype) else int(text)
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"tf.strings.to_number cannot parse {text!r} as {dtype.name}."
            ) from None
    return HostTensor.of(made)


def as_string(
    input: ArrayLike,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> HostTensor:
    """Formats numbers as strings, as ``printf`` in C does.

    >>> as_string([3.14159, 2.0], precision=2).tolist()
    [b'3.14', b'2.00']

    Args:
        input: Numbers, booleans or strings.
        precision: The number of decimal digits; default 6.
        scientific: Whether to use scientific notation for floats.
        shortest: Whether to use the shortest representation of floats.
        width: The minimum width.
        fill: The fill character: a space, ``"0"``, ``"+"`` or ``"-"``.
        name: Ignored.
    """
    array = concrete(input) if hasattr(input, "dtype") else np.asarray(as_tensor(input))
    if array is None:
        raise InvalidArgumentError(
            "tf.strings.as_string runs on the host, got a traced array. Call it in Dataset.map or outside "
            "compiled code, or print with tf.print."
        )
    if scientific and shortest:
        raise InvalidArgumentError("tf.strings.as_string takes scientific or shortest, not both.")
    if len(fill) > 1 or fill not in ("", " ", "0", "+", "-"):
        raise InvalidArgumentError(f"fill must be a space, '0', '+' or '-', got {fill!r}.")
    kind = "e" if scientific else "g" if shortest else "f"
    digits = "" if precision < 0 else f".{precision}"
    size = "" if width < 0 else str(width)

    def written(value: Leaf) -> bytes:
        if isinstance(value, (bytes, str)):
            return value.encode() if isinstance(value, str) else value
        if isinstance(value, (bool, np.bool_)):
            return b"true" if value else b"false"
        if is_complex(array.dtype):
            form = f"%{fill}{size}{digits}{kind}"
            return f"({form % value.real},{form % value.imag})".encode()
        if is_float(array.dtype):
            return (f"%{fill}{size}{digits}{kind}" % float(value)).encode()
        return (f"%{fill}{size}d" % int(value)).encode()

    return _objects(array.shape, [written(value) for value in array.ravel()])


def format(
    template: str,
    inputs: PyTree,
    placeholder: str = "{}",
    summarize: int = 3,
    name: str | None = None,
) -> HostTensor:
    """Formats arrays into a template, as ``tf.print`` shows them.

    >>> format("x: {}", np.array([1, 2])).numpy()
    b'x: [1 2]'
    """
    given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    parts = template.split(placeholder)
    if len(parts) != len(given) + 1:
        raise InvalidArgumentError(
            f"template of tf.strings.format has {len(parts) - 1} placeholders, got {len(given)} arrays."
        )
    texts = []
    for value in given:
        array = np.asarray(as_tensor(value))
        text = format_array(array, summarize)
        texts.append(f'"{text}"' if is_host_only(array.dtype) and not array.ndim else text)
    text = parts[0] + "".join(text + part for text, part in zip(texts, parts[1:], strict=True))
    return _objects((), [text.encode()])


def to_hash_bucket_fast(input: StringLike, num_buckets: int, name: str | None = None) -> HostTensor:
    """Hashes each string to a number below ``num_buckets``, with TensorFlow's hash.

    >>> to_hash_bucket_fast(["Hello", "TensorFlow"], 3).shape
    (2,)
    """
    if num_buckets < 1:
        raise InvalidArgumentError(f"num_buckets must be positive, got {num_buckets}.")
    array = as_strings("strings.to_hash_bucket_fast", input)
    numbers = [fingerprint64(item) % num_buckets for item in _items(array)]
    return HostTensor.of(np.array(numbers, np.int64).reshape(array.shape))
