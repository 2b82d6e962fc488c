"""``Definition``: a function, dataset or variable that is sent to a worker once, then used by number."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from stratagem._src.core.errors import ShippingError
from stratagem._src.core.types import Picklable
from stratagem._src.parameter_server.protocol.serialization import (
    ByReference,
    Payload,
    complete,
    pack_and_list,
    unpicklable_part_error,
)
from stratagem._src.parameter_server.protocol.worker_messages import Define, Resource

__all__ = ["DefinedOnWorker", "Definition", "Definitions"]

_FIX = "Leave it out, or make it inside of the function."


class DefinedOnWorker(ByReference):
    """Base of objects that each worker creates for itself, from a definition."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition


class Definition:
    """The content that is sent to a worker for one function, dataset, iterator or variable.

    Args:
        number: Its number.
        kind: ``"function"``, ``"dataset"``, ``"iterator"`` or ``"variable"``.
        payload: The pickled content.
    """

    __slots__ = ("__weakref__", "kind", "number", "payload", "requires")

    def __init__(self, number: int, kind: str, payload: Payload) -> None:
        self.number: int = number
        self.kind: str = kind
        self.payload: Payload = payload
        self.requires: list[Definition] = []
        for reference in payload.references:
            if not isinstance(reference, DefinedOnWorker):
                raise ShippingError(
                    f"A scheduled function must not capture a {type(reference).__name__}. "
                    "Pass it as an argument: schedule(fn, args=(value,))."
                )
            self.requires.append(reference.definition)

    def message(self) -> Define:
        """Returns the message for the worker."""
        references = tuple(Resource(required.number) for required in self.requires)
        return Define(self.number, self.kind, self.payload._replace(references=()), references)


class _CachedDefinition(NamedTuple):
    """The definition of a function, with weak references to its owner and, for a method, its code."""

    anchor: Callable[[], Any]
    code: Callable[[], Any]
    definition: Definition


def _no_code() -> None:
    """Stands for the code of a function that is not a method."""


class Definitions:
    """Creates definitions, one per function for the function's lifetime.

    Args:
        forget: Called with the number of each definition that was garbage-collected.
    """

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget
        self._numbers = itertools.count()
        # Keyed by id(); an entry is valid only while its weak references still return the same objects.
        self._by_function: dict[tuple[int, int], _CachedDefinition] = {}

    def of_function(self, function: Callable[..., Any]) -> Definition:
        """Returns the definition of a function: the same one for the same function.

        Raises:
            ShippingError: If the function or one of its captures cannot be pickled.
        """
        anchor: Any = function
        code: Any = None
        if isinstance(
            function, types.MethodType
        ):  # each attribute access creates a new method object
            anchor, code = function.__self__, function.__func__
        key = (id(anchor), id(code))
        known = self._by_function.get(key)
        if known is not None and known.anchor() is anchor and known.code() is code:
            return known.definition
        definition = self.make("function", function)
        functions = self._by_function

        def forget(_: weakref.ref[Any]) -> None:
            functions.pop(key, None)

        # An object without weak references is not cached: it is sent again every time.
        with contextlib.suppress(TypeError):
            functions[key] = _CachedDefinition(
                weakref.ref(anchor, forget),
                _no_code if code is None else weakref.ref(code, forget),
                definition,
            )
        return definition

    def make(self, kind: str, content: Picklable) -> Definition:
        """Returns a new definition."""
        payload, carried = _pack(content)
        if complete(carried):
            payload, _ = _pack(content)
        definition = Definition(next(self._numbers), kind, payload)
        weakref.finalize(definition, self._forget, definition.number).atexit = False
        return definition


def _pack(content: Picklable) -> tuple[Payload, list[Any]]:
    try:
        return pack_and_list(content)
    except Exception as error:
        raise unpicklable_part_error(_captured(content), error, _FIX) from error


def _captured(content: Picklable) -> list[tuple[str, Any]]:
    """Returns the captures of a function, each with a name, and the function itself last."""
    name = getattr(content, "__qualname__", type(content).__qualname__)
    function = inspect.unwrap(content) if callable(content) else content
    captured: dict[str, Any] = {}
    if isinstance(function, types.MethodType):
        captured["self"] = function.__self__
        function = function.__func__
    if isinstance(function, types.FunctionType):
        variables = inspect.getclosurevars(function)
        captured |= {**variables.globals, **variables.nonlocals}
    parts = [(f"{key!r}, which {name} uses,", value) for key, value in captured.items()]
    return [*parts, (f"The function {name}", content)]
