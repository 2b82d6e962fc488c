"""``fingerprint``: a hash that is equal for plans with the same elements, even in different programs.

It covers the transformations, their arguments and arrays, and the user functions: their code, their
closures, and the functions and values of their own module that they use.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.dataset_base import DatasetBase
from stratagem._src.data.plan.node import Node
from stratagem._src.data.plan.run import Seed

__all__ = ["fingerprint"]

_OWN_MODULE = __name__.partition(".")[0]
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, np.dtype)
_NAMED = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc, types.MethodWrapperType)


def fingerprint(plan: Node) -> int:
    """Returns an unsigned 64-bit hash.

    All shuffles without a seed are equal, and files are identified by name.

    Raises:
        InvalidArgumentError: If a function uses an object that cannot be inspected.
    """
    walk = _Walk()
    walk.add(plan)
    return int.from_bytes(walk.digest(), "little")


class _Walk:
    """Hashes everything reachable from a value, each object once."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._seen: dict[int, tuple[int, Any]] = {}

    def digest(self) -> bytes:
        return self._hash.digest()

    def _update(self, *texts: str | bytes) -> None:
        for text in texts:
            data = text if isinstance(text, bytes) else text.encode()
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def add(self, value: Any) -> None:
        """Hashes a value and everything that it refers to."""
        if isinstance(value, _PLAIN):
            self._update(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self._update("again", str(self._seen[id(value)][0]))
            return
        # Keeps the object alive, so that no other object can get its id.
        self._seen[id(value)] = len(self._seen), value
        self._update(type(value).__qualname__)
        for part in self._parts(value):
            self.add(part)

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Node):
            ignored = ("inputs", "_spec", *value.derived_attributes)
            yield {name: part for name, part in vars(value).items() if name not in ignored}
            yield from value.inputs
        elif isinstance(value, DatasetBase):
            yield value.plan
        elif isinstance(value, Seed):
            yield value.identity
        elif isinstance(value, (tuple, list)):
            yield len(value)
            yield from value
        elif isinstance(value, Mapping):
            yield len(value)
            for key, item in value.items():
                yield key
                yield item
        elif isinstance(value, (set, frozenset)):
            yield sorted(map(repr, value))
        elif isinstance(value, _NAMED):
            yield getattr(value, "__module__", None) or ""
            yield getattr(value, "__qualname__", None) or value.__name__
        elif hasattr(value, "dtype") and hasattr(value, "tobytes"):
            array = np.asarray(value)
            yield from (array.dtype, array.shape)
            yield array.tolist() if array.dtype.hasobject else _digest_of(array)
        else:
            yield from _parts_of_code(value) or _parts_of_object(value)


def _digest_of(array: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data).digest()


def _parts_of_code(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_consts, value.co_names, value.co_varnames]
    if isinstance(value, types.CellType):
        return [_cell_contents(value)]
    if isinstance(value, types.FunctionType):
        captured = [value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ())]
        # Our own functions are identified by name, not by code.
        if value.__module__.partition(".")[0] == _OWN_MODULE:
            return [value.__module__, value.__qualname__, *captured]
        return [value.__code__, *captured, _globals_of(value)]
    wrapped = getattr(value, "__wrapped__", None)
    return [] if wrapped is None else [wrapped]


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Returns the globals that a function uses: values of its own package, names of other packages."""
    package = function.__module__.partition(".")[0]
    used: dict[str, Any] = {}
    for name in _names_in(function.__code__):
        value = function.__globals__.get(name)
        home = getattr(value, "__module__", None)
        foreign = isinstance(home, str) and home.partition(".")[0] != package
        used[name] = (home, name) if foreign and callable(value) else value
    return used


def _names_in(code: types.CodeType) -> list[str]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return sorted({*code.co_names, *(name for each in inner for name in _names_in(each))})


def _parts_of_object(value: Any) -> list[Any]:
    try:
        reduced = value.__reduce_ex__(2)
    except TypeError:
        raise InvalidArgumentError(
            "The fingerprint of a dataset covers every object that its functions use, and cannot "
            f"inspect {value!r}. Use a function without it, or pass a key to snapshot()."
        ) from None
    return [reduced] if isinstance(reduced, str) else list(reduced[:3])
