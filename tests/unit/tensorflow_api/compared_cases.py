"""Calls of TensorFlow's functions, made there and here: the files of cases, and what one gives.

A case names a function and its arguments. Arrays of NumPy are given as tensors, anything else as it is.
``gradient=True`` compares the gradient with respect to every float array among the arguments as well.
A case that raises in TensorFlow must raise here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Case", "Library", "call", "case", "fingerprint"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        function: Dotted name below ``tf``, or a function whose first argument is ``tf``.
        args: Positional arguments.
        kwargs: Named arguments.
        gradient: Whether gradients are compared.
        rtol: How far numbers may be apart, relative to the largest.
        through: What of the result is compared.
    """

    function: str | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradient: bool
    rtol: float
    through: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        """What the case is called."""
        return self.function if isinstance(self.function, str) else self.function.__name__


def case(
    function: str | Callable[..., Any],
    *args: Any,
    gradient: bool = False,
    rtol: float = 1e-5,
    through: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Case:
    """Returns a case; see ``Case``."""
    return Case(function, args, kwargs, gradient, rtol, through)


@dataclasses.dataclass(frozen=True)
class Library:
    """TensorFlow, or what stands in for it.

    Attributes:
        root: Its module.
        tensor: Makes a tensor of an array.
        leaves: Takes a result apart.
        gradients: Of a function of tensors, which returns a list of them, with respect to its arguments,
            given weights for what it returns.
    """

    root: Any
    tensor: Callable[[np.ndarray], Any]
    leaves: Callable[[Any], list[Any]]
    gradients: Callable[[Callable[..., Any], list[Any], list[np.ndarray]], list[Any]]


def fingerprint(made: Case) -> str:
    """Returns a short text that is another one for other arguments."""
    what = made.function if isinstance(made.function, str) else inspect.getsource(made.function)
    text = repr((what, _written(made.args), _written(made.kwargs), made.gradient))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _written(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tolist())
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    return value.__name__ if callable(value) else repr(value)


def call(library: Library, made: Case) -> tuple[list[np.ndarray], list[np.ndarray]] | str:
    """Returns the arrays of the result and the gradients, or the name of the error."""
    function: Any = library.root
    if isinstance(made.function, str):
        for name in made.function.split("."):
            function = getattr(function, name)
    else:
        function = functools.partial(made.function, library.root)
    arrays: list[np.ndarray] = []

    def opened(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return _Slot(len(arrays) - 1)
        if isinstance(value, dict):
            return {key: opened(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(opened(item) for item in value)
        return value

    args, kwargs = opened(made.args), opened(made.kwargs)

    def filled(value: Any, tensors: list[Any]) -> Any:
        if isinstance(value, _Slot):
            return tensors[value.number]
        if isinstance(value, dict):
            return {key: filled(item, tensors) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(filled(item, tensors) for item in value)
        return value

    def run(tensors: list[Any]) -> list[Any]:
        result = function(*filled(args, tensors), **filled(kwargs, tensors))
        return library.leaves(made.through(result) if made.through else result)

    tensors = [library.tensor(array) for array in arrays]
    try:
        results = [np.asarray(leaf) for leaf in run(tensors)]
    except Exception as error:
        return type(error).__name__
    if not made.gradient:
        return results, []
    floating = [i for i, array in enumerate(arrays) if array.dtype.kind == "f"]
    compared = [i for i, shown in enumerate(results) if shown.dtype.kind == "f"]
    weights = [
        np.cos(np.arange(results[i].size)).astype(np.float32).reshape(results[i].shape)
        for i in compared
    ]

    def of_floats(*values: Any) -> list[Any]:
        given = list(tensors)
        for place, value in zip(floating, values, strict=True):
            given[place] = value
        leaves = run(given)
        return [leaves[i] for i in compared]

    found = library.gradients(of_floats, [tensors[i] for i in floating], weights)
    zeros = [np.zeros_like(arrays[i]) for i in floating]
    return results, [
        zero if gradient is None else np.asarray(gradient)
        for gradient, zero in zip(found, zeros, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Slot:
    number: int
