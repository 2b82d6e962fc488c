"""What a step captures, taken apart: values that a program can take as inputs, and all the rest.

A step that a loop makes anew in every iteration, or whose surroundings change between iterations, is
the same step if its code is. What it finds in its closure, in default arguments, in arguments of
``functools.partial``, in the attributes of its ``self`` and in globals becomes an input of its program
if it is a number or an array. What cannot be an input is compared, by value or by identity.
"""

from __future__ import annotations

import copy
import enum
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import jax
import numpy as np

from stratagem.execution.bound_function import BoundFunction, CompiledFunction
from stratagem.execution.loaded_names import global_names, stores_globals
from stratagem.execution.signature import static_key
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica
from stratagem.values.variable import Variable

__all__ = ["CapturedValue", "Captures", "Place"]

# Objects of these packages are taken as they are: their insides are not the user's.
_CLOSED_PACKAGES = frozenset(["builtins", "jax", "jaxlib", "numpy", "stratagem", "threading"])
Place = Any
"""Where something is captured: by which code or class, and which of its contents it is in."""

_NUMBERS = (int, float, complex)
_PLAIN = frozenset([str, bytes, bool, type(None), np.dtype, types.BuiltinFunctionType])
_LARGEST_OPENED = 10_000
_DEFINED_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_MOST_NUMBERS = 16


class CapturedValue:
    """A number or an array that a step captures.

    Attributes:
        value: It.
        number: Whether it is a Python number.
        changing: Whether it has to be expected to change between iterations.
    """

    __slots__ = ("changing", "number", "value")

    def __init__(self, value: Any, *, number: bool, changing: bool) -> None:
        self.value = value
        self.number = number
        self.changing = changing


class Captures:
    """A step, taken apart.

    Args:
        fn: The step.
        changing: Names that the code around the step gives other values again and again.
        effects: Places whose contents are not looked at, because the step itself changes them.

    Attributes:
        fn: The step.
        key: Equal for steps that differ in nothing but ``values``.
        needs: References to what the key compares by identity.
        values: The numbers and arrays.
    """

    def __init__(
        self, fn: Callable[..., Any], changing: frozenset[str], effects: Set[Place] = frozenset()
    ) -> None:
        self.fn = fn
        self._effects = effects
        self.values: list[CapturedValue] = []
        self.needs: list[weakref.ref[Any]] = []
        self._changing = changing
        self._opened: dict[int, tuple[int, _Part]] = {}
        self._key: list[Any] = []
        self._root = self._open(fn, None, changing=True)
        self.key = tuple(self._key)

    def rebuild(self, values: Sequence[Any]) -> Callable[..., Any]:
        """Returns the step with other values in place of those that it has captured."""
        opened = [part for _, part in self._opened.values()]
        step: Callable[..., Any] = _Rebuilding(opened, values).get(self._root)
        return step

    def changed_places(self) -> set[Place]:
        """Returns the places whose contents are not what they were, because the step has run."""
        return {
            part.place_of(i)
            for _, part in self._opened.values()
            for i, (now, _) in enumerate(part.contents(self._changing, False))
            if i >= len(part.children) or part.children[i].original is not now
        }

    def _open(self, value: Any, place: Place, *, changing: bool = False) -> _Part:
        """Takes an object apart; its numbers probably change if it is ``changing``."""
        if place in self._effects:
            return _Part(value)
        kind = type(value)
        if kind in _NUMBERS:
            return self._leaf(value, number=True, changing=changing)
        if kind in _PLAIN or isinstance(value, (Variable, types.ModuleType)):
            return self._constant(value)
        if isinstance(value, (jax.Array, PerReplica, Mirrored)):
            return self._leaf(value, number=False, changing=True)
        if isinstance(value, (np.ndarray, np.generic)):
            numeric = value.dtype.kind in "biufc"
            return self._leaf(value, number=False, changing=True) if numeric else self._text(value)
        known = self._opened.get(id(value))
        if known is not None:
            self._key.append(known[0])
            return known[1]
        part = self._part_of(value)
        if part is None:
            return self._constant(value)
        self._opened[id(value)] = len(self._opened), part
        part.place = place
        self._key.append(part.identity())
        for i, (child, child_changing) in enumerate(part.contents(self._changing, changing)):
            part.children.append(self._open(child, part.place_of(i), changing=child_changing))
        return part

    def _part_of(self, value: Any) -> _Part | None:
        if len(self._opened) >= _LARGEST_OPENED:
            return None
        if isinstance(value, types.FunctionType):
            return None if _closed(value.__module__) else _Function(value)
        if isinstance(value, (functools.partial, types.MethodType, BoundFunction)):
            return _Call(value)
        if isinstance(value, CompiledFunction):
            return _Compiled(value)
        if isinstance(value, dict) or type(value) in (list, tuple) or _is_named(value):
            return _Items(value) if len(value) <= _LARGEST_OPENED else None
        return _Object(value) if _is_open(_kind(value)) else None

    def _leaf(self, value: Any, *, number: bool, changing: bool) -> _Part:
        self._key.append(type(value))
        leaf = _Leaf(value, len(self.values))
        self.values.append(CapturedValue(value, number=number, changing=changing))
        return leaf

    def _constant(self, value: Any) -> _Part:
        self._key.append(static_key(value, self.needs))
        if isinstance(value, type) and not _closed(value.__module__):
            numbers = [(k, v) for k, v in vars(value).items() if type(v) in (*_NUMBERS, bool, str)]
            self._key.append(tuple(static_key(pair, self.needs) for pair in numbers))
        return _Part(value)

    def _text(self, value: Any) -> _Part:
        self._key.append((value.shape, value.dtype, value.tobytes()))
        return _Part(value)


class _Part:
    """An object that a step captures as it is."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.children: list[_Part] = []
        self.place: Place = None

    def place_of(self, index: int) -> Place:
        """Returns the place of one of its contents, the same in every iteration."""
        return self.identity(), index

    def identity(self) -> Any:
        """Returns what two objects of this kind have in common if they differ in contents only."""
        raise NotImplementedError

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        """Returns what it consists of, each with whether its numbers probably change."""
        raise NotImplementedError

    def begin(self) -> Any:
        """Returns a new object whose contents are still missing, if there can be one."""
        return None

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        """Returns the new object with its contents."""
        raise NotImplementedError


class _Leaf(_Part):
    """A value that can be an input of a program."""

    def __init__(self, original: Any, position: int) -> None:
        super().__init__(original)
        self.position = position


class _Items(_Part):
    """A list, tuple or dictionary."""

    def place_of(self, index: int) -> Place:
        return self.place

    def identity(self) -> Any:
        value = self.original
        if isinstance(value, dict):
            return type(value), tuple(static_key(key, []) for key in value)
        return type(value), len(value)

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        values = self.original.values() if isinstance(self.original, dict) else self.original
        few = len(self.original) <= _MOST_NUMBERS
        return [(value, changing and few) for value in values]

    def begin(self) -> Any:
        return copy.copy(self.original) if isinstance(self.original, (dict, list)) else None

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        if isinstance(begun, dict):
            begun.update(zip(self.original, contents, strict=True))
            return begun
        if isinstance(begun, list):
            begun[:] = contents
            return begun
        kind = type(self.original)
        return kind(*contents) if _is_named(self.original) else kind(contents)


class _Function(_Part):
    """A Python function: its closure, default arguments and the globals it reads."""

    def __init__(self, original: types.FunctionType) -> None:
        super().__init__(original)
        code = original.__code__
        self._cells = original.__closure__ or ()
        self._filled = [cell for cell in self._cells if _is_filled(cell)]
        self._filled_names = [
            name
            for name, cell in zip(code.co_freevars, self._cells, strict=True)
            if _is_filled(cell)
        ]
        self._keywords = original.__kwdefaults__ or {}
        there = original.__globals__
        self._globals = [
            name
            for name in global_names(code)
            if name in there
            and not isinstance(there[name], (types.ModuleType, types.BuiltinFunctionType))
        ]

    def identity(self) -> Any:
        names = (*self._filled_names, *self._keywords, *self._globals)
        return self.original.__code__, names, len(self.original.__defaults__ or ())

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        for name, cell in zip(self._filled_names, self._filled, strict=True):
            yield cell.cell_contents, name in names
        for value in self.original.__defaults__ or ():
            yield value, True
        for value in self._keywords.values():
            yield value, True
        for name in self._globals:
            yield self.original.__globals__[name], False

    def begin(self) -> types.FunctionType:
        original = self.original
        cells = tuple(types.CellType() for _ in self._cells)
        keeps_globals = not self._globals or stores_globals(original.__code__)
        there = original.__globals__ if keeps_globals else dict(original.__globals__)
        begun = types.FunctionType(original.__code__, there, original.__name__, None, cells or None)
        begun.__qualname__, begun.__module__ = original.__qualname__, original.__module__
        begun.__dict__.update(original.__dict__)
        return begun

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        remaining = iter(contents)
        for cell, original in zip(begun.__closure__ or (), self._cells, strict=True):
            if _is_filled(original):
                cell.cell_contents = next(remaining)
        begun.__defaults__ = (
            tuple(next(remaining) for _ in self.original.__defaults__ or ()) or None
        )
        begun.__kwdefaults__ = {name: next(remaining) for name in self._keywords} or None
        if begun.__globals__ is not self.original.__globals__:
            begun.__globals__.update(zip(self._globals, remaining, strict=True))
        return begun


class _Call(_Part):
    """A ``functools.partial`` or a method: a function with some of its arguments."""

    def identity(self) -> Any:
        if isinstance(self.original, functools.partial):
            return functools.partial, len(self.original.args), tuple(self.original.keywords)
        return types.MethodType

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        value = self.original
        if isinstance(value, functools.partial):
            return [(v, True) for v in (value.func, *value.args, *value.keywords.values())]
        if isinstance(value, BoundFunction):
            return [(value.python_function.__func__, False), (value.__self__, True)]  # type: ignore[attr-defined]
        return [(value.__func__, False), (value.__self__, True)]

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        if not isinstance(self.original, functools.partial):
            return types.MethodType(*contents)
        fn, *rest = contents
        count = len(self.original.args)
        keywords = dict(zip(self.original.keywords, rest[count:], strict=True))
        return functools.partial(fn, *rest[:count], **keywords)


class _Compiled(_Part):
    """A ``stratagem.function``, which runs as it was written while another one is traced."""

    def identity(self) -> Any:
        return CompiledFunction

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        return [(self.original.python_function, False)]

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        return contents[0]


class _Object(_Part):
    """An instance of a class: its attributes."""

    def __init__(self, original: Any) -> None:
        super().__init__(original)
        self._names = [*getattr(original, "__dict__", ()), *_filled_slots(original)]

    def identity(self) -> Any:
        return type(self.original), tuple(self._names)

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        held = getattr(self.original, "__dict__", {})
        for name in self._names:
            value = held[name] if name in held else getattr(self.original, name)
            yield value, changing and type(value) in _NUMBERS

    def begin(self) -> Any:
        kind = type(self.original)
        return kind() if kind is types.SimpleNamespace else object.__new__(kind)

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        for name, value in zip(self._names, contents, strict=True):
            object.__setattr__(begun, name, value)
        return begun


class _Rebuilding:
    """Makes a step anew, as far as other values come into it."""

    def __init__(self, opened: Sequence[_Part], values: Sequence[Any]) -> None:
        self._values = values
        self._made: dict[int, Any] = {}
        self._changed = {
            id(leaf)
            for part in opened
            for leaf in part.children
            if isinstance(leaf, _Leaf) and values[leaf.position] is not leaf.original
        }
        grown = -1
        while grown != len(self._changed):
            grown = len(self._changed)
            for part in opened:
                if any(id(child) in self._changed for child in part.children):
                    self._changed.add(id(part))

    def get(self, part: _Part) -> Any:
        """Returns the object that takes the place of a part."""
        if id(part) not in self._changed:
            return part.original
        if isinstance(part, _Leaf):
            return self._values[part.position]
        if id(part) not in self._made:
            begun = self._made[id(part)] = part.begin()
            self._made[id(part)] = part.finish(begun, [self.get(child) for child in part.children])
        return self._made[id(part)]


def _closed(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _CLOSED_PACKAGES


def _kind(value: Any) -> Any:
    return type(value)


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


@functools.lru_cache(maxsize=1024)
def _is_open(kind: Any) -> bool:
    """Returns whether instances of a class are nothing but their attributes, of use to users only."""
    if kind is types.SimpleNamespace:
        return True
    return not issubclass(kind, (type, enum.Enum, BaseException)) and not any(
        _closed(base.__module__) or not base.__flags__ & _DEFINED_IN_PYTHON
        for base in kind.__mro__[:-1]
    )


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (raises if there is nothing)
    except ValueError:
        return False
    return True


def _filled_slots(value: Any) -> list[str]:
    slots = _slots(_kind(value))
    return [name for name in slots if hasattr(value, name)] if slots else []


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        declared = vars(base).get("__slots__", ())
        for name in [declared] if isinstance(declared, str) else declared:
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(name for name in names if not name.startswith("__"))
