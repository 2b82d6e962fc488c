"""``tf.print``: prints values in TensorFlow's format, eagerly and from compiled code."""

from __future__ import annotations

import pprint
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree, Tensor
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.tensorflow_api.conversion import concrete
from stratagem._src.values.array_operators import ArrayOperators, operand_of

__all__ = ["format_array", "print"]


def print(*inputs: PyTree, **kwargs: Any) -> None:
    """Prints arrays, strings and structures of them, to ``sys.stderr`` by default.

    Each replica prints its own values. In compiled code the running program prints, whose operations may
    run in another order than written.

    JAX equivalent: ``jax.debug.print``.

    >>> import stratagem as sg
    >>> sg.print("weights:", sg.constant([[1.0, 2.5], [3.0, 4.0]]), output_stream=sys.stdout)
    weights: [[1 2.5]
     [3 4]]

    Args:
        *inputs: The values to print.
        **kwargs: ``output_stream``: ``sys.stderr``, ``sys.stdout`` or ``"file:///path"``; ``summarize``:
            the number of elements to show at the start and end of each dimension, default 3, -1 for all;
            ``sep``, default a space; ``end``, default a new line; ``name``, ignored.
    """
    stream = kwargs.pop("output_stream", sys.stderr)
    summarize = kwargs.pop("summarize", 3)
    separator, end = kwargs.pop("sep", " "), kwargs.pop("end", "\n")
    kwargs.pop("name", None)
    if kwargs:
        raise InvalidArgumentError(f"tf.print got unknown options {sorted(kwargs)}.")
    if not (hasattr(stream, "write") or (isinstance(stream, str) and stream.startswith("file://"))):
        raise InvalidArgumentError(
            "output_stream of tf.print must be sys.stderr, sys.stdout or 'file:///path', got "
            f"{stream!r}."
        )
    # sys.stdout may be replaced, as pytest does, while a compiled program lives: look it up by name.
    named = {id(sys.stdout): "stdout", id(sys.stderr): "stderr"}.get(id(stream))
    leaves, structure = jax.tree.flatten(list(inputs), is_leaf=lambda x: not _is_nest(x))
    leaves = [leaf.__jax_array__() if _is_foreign_variable(leaf) else leaf for leaf in leaves]
    traced = [place for place, leaf in enumerate(leaves) if is_tracer(_unwrapped(leaf))]

    def write(*values: Tensor) -> None:
        found = list(leaves)  # a copy: replicas print at the same time
        for place, value in zip(traced, values, strict=True):
            found[place] = np.asarray(value)
        parts = jax.tree.unflatten(structure, found)
        text = separator.join(_formatted(part, summarize) for part in parts) + end
        if isinstance(stream, str):
            with open(stream.removeprefix("file://"), "a") as file:
                file.write(text)
        else:
            (getattr(sys, named) if named else stream).write(text)

    if traced:
        jax.debug.callback(write, *(_unwrapped(leaves[place]) for place in traced))
    else:
        write()


def _is_nest(value: PyTree) -> bool:
    return isinstance(value, (list, tuple, dict))


def _unwrapped(value: PyTree) -> Any:
    return operand_of(value) if isinstance(value, ArrayOperators) else value


def _is_foreign_variable(value: PyTree) -> bool:
    """Returns whether ``value`` is a variable of another library, such as a Keras variable."""
    kind = type(value)
    return hasattr(kind, "__jax_array__") and hasattr(kind, "assign")


def _formatted(value: PyTree, summarize: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if _is_nest(value):
        return pprint.pformat(_formatted_leaves(value, summarize))
    if isinstance(value, (jax.Array, np.ndarray, np.generic, ArrayOperators)):
        array = concrete(value)
        return format_array(np.asarray(array), summarize)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return format_array(
            np.asarray(value, np.float32 if isinstance(value, float) else None), summarize
        )
    return str(value)


class _Text:
    """Text that ``pprint`` shows without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _formatted_leaves(value: PyTree, summarize: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _formatted_leaves(item, summarize) for key, item in value.items()}
    if _is_nest(value):
        items = [_formatted_leaves(item, summarize) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, (jax.Array, np.ndarray, np.generic, ArrayOperators)):
        return _Text(_formatted(value, summarize))
    return value


def format_array(array: np.ndarray[Any, Any], summarize: int = 3) -> str:
    """Formats an array without commas, and with the middle of long dimensions elided.

    >>> format_array(np.arange(10), 2)
    '[0 1 ... 8 9]'
    """
    if array.ndim == 0:
        return _number(array[()], quoted=False)

    def rows(part: np.ndarray[Any, Any], depth: int) -> str:
        count = len(part)
        if summarize < 0 or count <= 2 * summarize:
            places: list[int | None] = list(range(count))
        else:
            places = [*range(summarize), None, *range(count - summarize, count)]
        texts = [
            "..." if place is None
            else _number(part[place], quoted=True) if part.ndim == 1
            else rows(part[place], depth + 1)
            for place in places
        ]  # fmt: skip
        between = " " if part.ndim == 1 else "\n" * (part.ndim - 1) + " " * depth
        return f"[{between.join(texts)}]"

    return rows(array, 1)


def _number(value: PyTree, *, quoted: bool) -> str:
    if isinstance(value, (bytes, str)):
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        return f'"{text}"' if quoted else text
    if isinstance(value, (bool, np.bool_)):
        return "1" if value else "0"
    if isinstance(value, (complex, np.complexfloating)):
        return f"({_number(value.real, quoted=False)},{_number(value.imag, quoted=False)})"
    if isinstance(value, np.float64):
        return _shortest(value, 15, 17, np.float64)
    if isinstance(value, (float, np.floating, ml_dtypes.bfloat16)):
        return _shortest(np.float32(value), 6, 9, np.float32)
    return str(value)


def _shortest(value: PyTree, few: int, many: int, kind: Callable[..., Any]) -> str:
    text = f"{value:.{few}g}"
    return text if kind(text) == value or value != value else f"{value:.{many}g}"
