"""``tf.strings``: Unicode code points and encodings."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, StringLike
from stratagem._src.data.ragged_tensor import RaggedTensor
from stratagem._src.tensorflow_api.host_tensor import HostTensor
from stratagem._src.tensorflow_api.io_files import map_strings
from stratagem._src.tensorflow_api.strings import map_strings_to_rows

__all__ = ["unicode_decode", "unicode_encode", "unicode_split", "unicode_transcode"]

_ENCODINGS = {"UTF-8": "utf-8", "UTF-16-BE": "utf-16-be", "UTF-32-BE": "utf-32-be"}


def _encoding(op: str, name: str) -> str:
    if name.upper() not in _ENCODINGS:
        raise InvalidArgumentError(
            f"The encoding of tf.strings.{op} must be one of {sorted(_ENCODINGS)}, got {name!r}."
        )
    return _ENCODINGS[name.upper()]


def _characters(
    op: str, data: bytes, encoding: str, errors: str, replacement_char: int, control: bool = False
) -> str:
    if errors not in ("strict", "replace", "ignore"):
        raise InvalidArgumentError(
            f"errors of tf.strings.{op} must be 'strict', 'replace' or 'ignore', got {errors!r}."
        )
    try:
        text = data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"tf.strings.{op}: {error}.") from None
    if replacement_char != 0xFFFD:
        text = text.replace("\ufffd", chr(replacement_char))
    if control:
        text = "".join(chr(replacement_char) if ord(c) < 32 else c for c in text)
    return text


def unicode_decode(
    input: StringLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Any:
    """Decodes a string to code points, or a vector of strings to a ``RaggedTensor``.

    >>> unicode_decode("aé", "UTF-8").tolist()
    [97, 233]
    """
    encoding = _encoding("unicode_decode", input_encoding)

    def points(data: bytes) -> list[int]:
        text = _characters(
            "unicode_decode", data, encoding, errors, replacement_char, replace_control_characters
        )
        return [ord(character) for character in text]

    return map_strings_to_rows("strings.unicode_decode", input, points, np.int32)


def unicode_split(
    input: StringLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Any:
    """Splits a string into characters, or a vector of strings into a ``RaggedTensor``.

    >>> [c.decode() for c in unicode_split("aé", "UTF-8").tolist()]
    ['a', 'é']
    """
    encoding = _encoding("unicode_split", input_encoding)

    def characters(data: bytes) -> list[bytes]:
        text = _characters("unicode_split", data, encoding, errors, replacement_char)
        return [character.encode(encoding) for character in text]

    return map_strings_to_rows("strings.unicode_split", input, characters)


def unicode_encode(
    input: ArrayLike,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> HostTensor:
    """Encodes code points as a string, or each row of a matrix or ``RaggedTensor``.

    >>> unicode_encode([97, 233], "UTF-8").numpy().decode()
    'aé'
    """
    encoding = _encoding("unicode_encode", output_encoding)

    def text(points: ArrayLike) -> bytes:
        found = ""
        for point in np.asarray(points).tolist():
            if 0 <= point < 0x110000 and not 0xD800 <= point < 0xE000:
                found += chr(point)
            elif errors == "strict":
                raise InvalidArgumentError(
                    f"tf.strings.unicode_encode needs valid Unicode code points, got {point}."
                )
            elif errors == "replace":
                found += chr(replacement_char)
        return found.encode(encoding)

    if isinstance(input, RaggedTensor) or np.ndim(input) == 2:
        rows = [text(row) for row in input]
        made = np.empty(len(rows), np.object_)
        made[:] = rows
    elif np.ndim(input) == 1:
        made = np.empty((), np.object_)
        made[()] = text(input)
    else:
        raise InvalidArgumentError(
            f"tf.strings.unicode_encode takes a vector, a matrix or rows, got shape {np.shape(input)}."
        )
    return HostTensor.of(made)


def unicode_transcode(
    input: StringLike,
    input_encoding: str,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> HostTensor:
    """Converts strings to another encoding.

    >>> unicode_transcode("a", "UTF-8", "UTF-16-BE").numpy()
    b'\\x00a'
    """
    old = _encoding("unicode_transcode", input_encoding)
    new = _encoding("unicode_transcode", output_encoding)

    def changed(data: bytes) -> bytes:
        text = _characters(
            "unicode_transcode", data, old, errors, replacement_char, replace_control_characters
        )
        return text.encode(new)

    return map_strings("strings.unicode_transcode", input, changed)
