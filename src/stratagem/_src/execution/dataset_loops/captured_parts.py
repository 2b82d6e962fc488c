"""The kinds of objects that a step captures: what each consists of, and how it is made anew."""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections.abc import Iterable
from typing import Any

from stratagem._src.execution.bound_function import BoundFunction, CompiledFunction
from stratagem._src.execution.call_signature import static_key
from stratagem._src.execution.dataset_loops.loaded_names import global_names, stores_globals

__all__ = [
    "CallPart",
    "CompiledPart",
    "FunctionPart",
    "Items",
    "Leaf",
    "ObjectPart",
    "Part",
    "Place",
    "is_closed",
    "is_named",
    "is_open",
    "kind_of",
]

# Objects of these packages are taken as they are: their insides are not the user's.
_CLOSED_PACKAGES = frozenset(["builtins", "jax", "jaxlib", "numpy", "stratagem", "threading"])
Place = Any
"""Where something is captured: by which code or class, and which of its contents it is in."""

_NUMBERS = (int, float, complex)
_DEFINED_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_MOST_NUMBERS = 16


class Part:
    """An object that a step captures as it is."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.children: list[Part] = []
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

    def slots(self, made: Any) -> dict[Any, Any]:
        """Returns what an object of this kind, made by ``finish``, holds where it can be changed."""
        return {}

    def set_slot(self, slot: Any, value: Any) -> Place:
        """Changes the original as the object in its place was; returns where."""
        raise NotImplementedError

    def remove_slot(self, slot: Any) -> Place:
        """Removes from the original what was removed from the object in its place; returns where."""
        raise NotImplementedError

    def _replace_child(self, index: int, value: Any) -> Place:
        """Takes note that one of its contents is another one now."""
        place = self.place_of(index)
        self.children[index : index + 1] = [Part(value)]
        return place

    def _drop_child(self, index: int) -> Place:
        place = self.place_of(index)
        del self.children[index]
        return place


class Leaf(Part):
    """A value that can be an input of a program."""

    def __init__(self, original: Any, position: int) -> None:
        super().__init__(original)
        self.position = position


class Items(Part):
    """A list, tuple or dictionary."""

    def place_of(self, index: int) -> Place:
        """Returns the place of the whole: its contents move."""
        return self.place

    def identity(self) -> Any:
        """Returns what is the same in every iteration."""
        value = self.original
        if isinstance(value, dict):
            return type(value), tuple(static_key(key, []) for key in value)
        return type(value), len(value)

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        """Returns what it consists of."""
        values = self.original.values() if isinstance(self.original, dict) else self.original
        few = len(self.original) <= _MOST_NUMBERS
        return [(value, changing and few) for value in values]

    def begin(self) -> Any:
        """Returns a new one, empty."""
        return copy.copy(self.original) if isinstance(self.original, (dict, list)) else None

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        """Returns the new one, filled."""
        if isinstance(begun, dict):
            begun.update(zip(self.original, contents, strict=True))
            return begun
        if isinstance(begun, list):
            begun[:] = contents
            return begun
        kind = type(self.original)
        return kind(*contents) if is_named(self.original) else kind(contents)

    def slots(self, made: Any) -> dict[Any, Any]:
        """Returns what it holds."""
        if isinstance(made, dict):
            return dict(made)
        return dict(enumerate(made)) if isinstance(made, list) else {}

    def set_slot(self, slot: Any, value: Any) -> Place:
        """Changes the original."""
        if isinstance(self.original, list) and slot >= len(self.original):
            self.original.append(value)
        else:
            self.original[slot] = value
        return self._replace_child(self._index(slot), value)

    def remove_slot(self, slot: Any) -> Place:
        """Changes the original."""
        index = self._index(slot)
        del self.original[slot]
        return self._drop_child(index)

    def _index(self, slot: Any) -> int:
        return list(self.original).index(slot) if isinstance(self.original, dict) else slot


class FunctionPart(Part):
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
        """Returns what is the same in every iteration."""
        names = (*self._filled_names, *self._keywords, *self._globals)
        return self.original.__code__, names, len(self.original.__defaults__ or ())

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        """Returns what it consists of."""
        for name, cell in zip(self._filled_names, self._filled, strict=True):
            yield cell.cell_contents, name in names
        for value in self.original.__defaults__ or ():
            yield value, True
        for value in self._keywords.values():
            yield value, True
        for name in self._globals:
            yield self.original.__globals__[name], False

    def begin(self) -> types.FunctionType:
        """Returns a new one, empty."""
        original = self.original
        cells = tuple(types.CellType() for _ in self._cells)
        keeps_globals = not self._globals or stores_globals(original.__code__)
        there = original.__globals__ if keeps_globals else dict(original.__globals__)
        begun = types.FunctionType(original.__code__, there, original.__name__, None, cells or None)
        begun.__qualname__, begun.__module__ = original.__qualname__, original.__module__
        begun.__dict__.update(original.__dict__)
        return begun

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        """Returns the new one, filled."""
        remaining = iter(contents)
        for cell, original in zip(begun.__closure__ or (), self._cells, strict=True):
            if original in self._filled:
                cell.cell_contents = next(remaining)
        begun.__defaults__ = (
            tuple(next(remaining) for _ in self.original.__defaults__ or ()) or None
        )
        begun.__kwdefaults__ = {name: next(remaining) for name in self._keywords} or None
        if begun.__globals__ is not self.original.__globals__:
            begun.__globals__.update(zip(self._globals, remaining, strict=True))
        return begun

    def slots(self, made: Any) -> dict[Any, Any]:
        """Returns what it holds."""
        cells = enumerate(made.__closure__ or ())
        return {index: cell.cell_contents for index, cell in cells if _is_filled(cell)}

    def set_slot(self, slot: Any, value: Any) -> Place:
        """Changes the original."""
        cell = self._cells[slot]
        cell.cell_contents = value
        if cell not in self._filled:
            return self.place
        return self._replace_child(self._filled.index(cell), value)

    def remove_slot(self, slot: Any) -> Place:
        """Changes the original."""
        del self._cells[slot].cell_contents
        return self.place


class CallPart(Part):
    """A ``functools.partial`` or a method: a function with some of its arguments."""

    def identity(self) -> Any:
        """Returns what is the same in every iteration."""
        if isinstance(self.original, functools.partial):
            return functools.partial, len(self.original.args), tuple(self.original.keywords)
        return types.MethodType

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        """Returns what it consists of."""
        value = self.original
        if isinstance(value, functools.partial):
            return [(v, True) for v in (value.func, *value.args, *value.keywords.values())]
        if isinstance(value, BoundFunction):
            return [(value.python_function.__func__, False), (value.__self__, True)]  # type: ignore[attr-defined]
        return [(value.__func__, False), (value.__self__, True)]

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        """Returns the new one, filled."""
        if not isinstance(self.original, functools.partial):
            return types.MethodType(*contents)
        fn, *rest = contents
        count = len(self.original.args)
        keywords = dict(zip(self.original.keywords, rest[count:], strict=True))
        return functools.partial(fn, *rest[:count], **keywords)


class CompiledPart(Part):
    """A ``stratagem.function``, which runs as it was written while another one is traced."""

    def identity(self) -> Any:
        """Returns what is the same in every iteration."""
        return CompiledFunction

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        """Returns what it consists of."""
        return [(self.original.python_function, False)]

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        """Returns the new one, filled."""
        return contents[0]


class ObjectPart(Part):
    """An instance of a class: its attributes."""

    def __init__(self, original: Any) -> None:
        super().__init__(original)
        self._names = [*getattr(original, "__dict__", ()), *_filled_slots(original)]

    def identity(self) -> Any:
        """Returns what is the same in every iteration."""
        return type(self.original), tuple(self._names)

    def contents(self, names: frozenset[str], changing: bool) -> Iterable[tuple[Any, bool]]:
        """Returns what it consists of."""
        held = getattr(self.original, "__dict__", {})
        for name in self._names:
            value = held[name] if name in held else getattr(self.original, name)
            yield value, changing and type(value) in _NUMBERS

    def begin(self) -> Any:
        """Returns a new one, empty."""
        kind = type(self.original)
        return kind() if kind is types.SimpleNamespace else object.__new__(kind)

    def finish(self, begun: Any, contents: list[Any]) -> Any:
        """Returns the new one, filled."""
        for name, value in zip(self._names, contents, strict=True):
            object.__setattr__(begun, name, value)
        return begun

    def slots(self, made: Any) -> dict[Any, Any]:
        """Returns what it holds."""
        attributes = dict(getattr(made, "__dict__", {}))
        return attributes | {name: getattr(made, name) for name in _filled_slots(made)}

    def set_slot(self, slot: Any, value: Any) -> Place:
        """Changes the original."""
        object.__setattr__(self.original, slot, value)
        if slot not in self._names:
            self._names.append(slot)
        return self._replace_child(self._names.index(slot), value)

    def remove_slot(self, slot: Any) -> Place:
        """Changes the original."""
        object.__delattr__(self.original, slot)
        index = self._names.index(slot)
        del self._names[index]
        return self._drop_child(index)


def is_closed(module: str | None) -> bool:
    """Returns whether what a module defines is taken as it is."""
    return module is None or module.partition(".")[0] in _CLOSED_PACKAGES


def kind_of(value: Any) -> Any:
    """Returns the type of an object."""
    return type(value)


def is_named(value: Any) -> bool:
    """Returns whether an object is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


@functools.lru_cache(maxsize=1024)
def is_open(kind: Any) -> bool:
    """Returns whether instances of a class are nothing but their attributes, of use to users only."""
    if kind is types.SimpleNamespace:
        return True
    return not issubclass(kind, (type, enum.Enum, BaseException)) and not any(
        is_closed(base.__module__) or not base.__flags__ & _DEFINED_IN_PYTHON
        for base in kind.__mro__[:-1]
    )


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (raises if there is nothing)
    except ValueError:
        return False
    return True


def _filled_slots(value: Any) -> list[str]:
    slots = _slots(kind_of(value))
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
