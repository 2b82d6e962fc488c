"""What a step captures, by value: two steps with equal snapshots do the same.

A step finds values in its closure, in default arguments, in arguments of ``functools.partial``, in the
attributes of its ``self`` and of that one's class, in globals and in the modules of the user, and so do
the functions that it calls. What cannot be compared by value makes the whole snapshot incomparable:
the step is then traced in every iteration.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from stratagem._src.execution.bound_function import BoundFunction, CompiledFunction
from stratagem._src.execution.call_signature import SameObject
from stratagem._src.execution.dataset_loops.loaded_names import global_names
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.variable import Variable

__all__ = ["StepSnapshot"]

# Objects of these packages do not change what a step computes, or say so by being another object.
_BY_IDENTITY = frozenset(
    ["jax", "jaxlib", "numpy", "stratagem", "logging", "threading", "_thread", "re", "_io", "io"]
)
_NUMBERS = (int, float, complex)
_PLAIN = (str, bytes, bool, type(None), np.dtype, range, slice, type(...), type(NotImplemented))
_FUNCTIONS_OF_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
_SEQUENCES = (list, tuple, collections.deque)
_MOST_OBJECTS = 10_000
_DEFINED_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class _Incomparable(Exception):
    """Something that may change without being another object, and cannot be looked into."""


class StepSnapshot:
    """What a step captures at one moment.

    Args:
        step: The step.
        changing: Names that the code around the step gives other values again and again.

    Attributes:
        key: Equal for steps that do the same; ``None`` if that cannot be known.
        needs: References to what the key compares by identity.
        suspects: The numbers that have to be expected to change.
    """

    def __init__(self, step: Callable[..., Any], changing: frozenset[str]) -> None:
        self.needs: list[weakref.ref[Any]] = []
        self.suspects: set[complex] = set()
        self._changing = changing
        self._seen: dict[int, tuple[int, Any]] = {}
        self._parts: list[Any] = []
        self.key: tuple[Any, ...] | None
        try:
            self._open(step, changes=True)
            self.key = tuple(self._parts)
        except _Incomparable:
            self.key = None

    def _open(self, value: Any, *, changes: bool = False) -> None:
        kind: Any = type(value)
        if kind in _NUMBERS:
            self._parts.append((kind, repr(value)))
            if changes:
                with contextlib.suppress(OverflowError):
                    self.suspects.add(complex(value))
        elif kind in _PLAIN or isinstance(value, _FUNCTIONS_OF_C):
            self._parts.append((kind, value if kind is not slice else repr(value)))
        elif isinstance(value, (jax.Array, PerReplica, Mirrored, Variable, enum.Enum)):
            self._identity(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(value)
        elif id(value) in self._seen:
            self._parts.append(("again", self._seen[id(value)][0]))
        else:
            if len(self._seen) >= _MOST_OBJECTS:
                raise _Incomparable
            # Kept, so that the address stays this object's own.
            self._seen[id(value)] = len(self._seen), value
            self._open_object(value, changes)

    def _open_object(self, value: Any, changes: bool) -> None:
        kind: Any = type(value)
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.ModuleType):
            self._identity(value)
        elif isinstance(value, functools.partial):
            self._all(functools.partial, (value.func, *value.args), True)
            self._mapping(value.keywords, True)
        elif isinstance(value, (types.MethodType, BoundFunction)):
            self._all("method", (_function_of(value), value.__self__), True)
        elif isinstance(value, CompiledFunction):
            self._all("function", (value.python_function,), False)
        elif isinstance(value, (property, staticmethod, classmethod, functools.cached_property)):
            self._all(kind, _functions_in(value), False)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.MappingProxyType):
            self._mapping(value, changes)
        elif isinstance(value, _SEQUENCES):
            self._all(kind, value, changes)
            self._attributes_of_subclass(value, _SEQUENCES)
        elif isinstance(value, dict):
            self._parts.append(kind)
            self._mapping(value, changes)
            self._attributes_of_subclass(value, (dict, collections.OrderedDict))
        elif isinstance(value, (set, frozenset)):
            self._set(value)
        elif isinstance(value, (bytearray, memoryview)):
            self._parts.append((kind, bytes(value)))
        elif _package(kind.__module__) in _BY_IDENTITY:
            self._identity(value)
        elif _is_plain_class(kind):
            self._attributes(value, changes)
        else:
            raise _Incomparable

    def _identity(self, value: Any) -> None:
        reference: weakref.ref[Any] | None = None
        with contextlib.suppress(TypeError):
            reference = weakref.ref(value)
            self.needs.append(reference)
        self._parts.append(SameObject(value, reference))

    def _array(self, value: Any) -> None:
        if value.dtype.hasobject:
            raise _Incomparable
        content = value.tobytes()
        if len(content) > hashlib.blake2b.MAX_DIGEST_SIZE:
            content = hashlib.blake2b(content).digest()
        self._parts.append((type(value), value.shape, str(value.dtype), content))

    def _all(self, label: Any, values: Iterable[Any], changes: bool) -> None:
        values = list(values)
        self._parts.append((label, len(values)))
        for value in values:
            self._open(value, changes=changes)

    def _mapping(self, value: Any, changes: bool) -> None:
        self._parts.append(("items", len(value)))
        for key, item in value.items():
            self._open(key)
            self._open(item, changes=changes)

    def _set(self, value: Any) -> None:
        if not all(type(item) in (*_NUMBERS, str, bytes, bool, type(None)) for item in value):
            raise _Incomparable
        self._parts.append((type(value), frozenset((type(item), repr(item)) for item in value)))

    def _function(self, fn: types.FunctionType) -> None:
        if _is_library(fn.__module__):
            self._identity(fn)
            return
        code = fn.__code__
        self._parts.append(code)
        for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing is in it yet
                self._parts.append("empty")
            else:
                self._named(value, code, changes=name in self._changing)
        self._all("defaults", fn.__defaults__ or (), True)
        self._mapping(fn.__kwdefaults__ or {}, True)
        self._mapping({k: v for k, v in vars(fn).items() if k != "__wrapped__"}, True)
        for name in global_names(code):
            if name in fn.__globals__:
                self._parts.append(name)
                self._named(fn.__globals__[name], code, changes=False)

    def _named(self, value: Any, code: types.CodeType, *, changes: bool) -> None:
        """Opens what a name of the code stands for; of the user's modules, what the code may read."""
        self._open(value, changes=changes)
        if isinstance(value, types.ModuleType) and not _is_library(value.__name__):
            for name in code.co_names:
                if name in vars(value):
                    self._parts.append(name)
                    self._named(vars(value)[name], code, changes=True)

    def _class(self, cls: type) -> None:
        self._identity(cls)
        for base in cls.__mro__:
            if _is_library(base.__module__):
                continue
            for name, value in vars(base).items():
                is_dunder = name.startswith("__") and name.endswith("__")
                if is_dunder and not isinstance(value, types.FunctionType):
                    continue
                if not isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                    self._parts.append(name)
                    self._open(value, changes=True)

    def _attributes_of_subclass(self, value: Any, known: tuple[type, ...]) -> None:
        if type(value) not in (*known, collections.Counter, collections.defaultdict):
            self._attributes(value, True)

    def _attributes(self, value: Any, changes: bool) -> None:
        kind: Any = type(value)
        self._open(kind)
        held = [*getattr(value, "__dict__", {}).items()]
        held += [(name, getattr(value, name)) for name in _slots(kind) if hasattr(value, name)]
        self._parts.append(("attributes", len(held)))
        for name, attribute in held:
            self._parts.append(name)
            self._open(attribute, changes=changes)


def _function_of(method: Any) -> Any:
    if isinstance(method, BoundFunction):
        return method.python_function.__func__  # type: ignore[attr-defined]
    return method.__func__


def _functions_in(descriptor: Any) -> list[Any]:
    names = ("fget", "fset", "fdel", "__func__", "func")
    found = [getattr(descriptor, name, None) for name in names]
    return [function for function in found if function is not None]


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _is_library(module: str | None) -> bool:
    """Returns whether a module is installed, and not the user's own."""
    package = _package(module)
    if package in sys.stdlib_module_names and package != "__main__":
        return True
    if package in _BY_IDENTITY:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@functools.lru_cache(maxsize=1024)
def _is_plain_class(kind: Any) -> bool:
    """Returns whether instances of a class are nothing but their attributes."""
    if kind is types.SimpleNamespace:
        return True
    return not issubclass(kind, BaseException) and all(
        base.__flags__ & _DEFINED_IN_PYTHON and not _is_compiled(base.__module__)
        for base in kind.__mro__[:-1]
    )


def _is_compiled(module: str) -> bool:
    """Returns whether a module is not written in Python, so that its objects may hide something."""
    if module in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not file.endswith((".py", ".pyc"))


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        declared = vars(base).get("__slots__", ())
        for name in [declared] if isinstance(declared, str) else declared:
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(name for name in names if not name.startswith("__"))
