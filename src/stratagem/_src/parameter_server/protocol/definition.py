"""``Definition``: something that workers are sent once and then told by number."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from stratagem._src.core.errors import ShippingError
from stratagem._src.parameter_server.protocol.shipping import ByReference, Parcel, check_parts, pack
from stratagem._src.parameter_server.protocol.worker_messages import Define, Resource

__all__ = ["DefinedOnWorker", "Definition", "Definitions"]

_FIX = "Leave it out, or make it inside of the function."


class DefinedOnWorker(ByReference):
    """Base of what every worker makes for itself, from a definition."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition


class Definition:
    """What is sent to a worker for one function, dataset, iterator or variable.

    Args:
        number: Its number.
        kind: ``"function"``, ``"dataset"``, ``"iterator"`` or ``"variable"``.
        parcel: What it is made of.
    """

    __slots__ = ("__weakref__", "kind", "number", "parcel", "requires")

    def __init__(self, number: int, kind: str, parcel: Parcel) -> None:
        self.number: int = number
        self.kind: str = kind
        self.parcel: Parcel = parcel
        self.requires: list[Definition] = []
        for reference in parcel.references:
            if not isinstance(reference, DefinedOnWorker):
                raise ShippingError(
                    f"A function that is scheduled must not capture a {type(reference).__name__}. "
                    "Pass it as an argument: schedule(fn, args=(value,))."
                )
            self.requires.append(reference.definition)

    def message(self) -> Define:
        """Returns what the worker is sent."""
        references = tuple(Resource(required.number) for required in self.requires)
        return Define(self.number, self.kind, self.parcel._replace(references=()), references)


class _Known(NamedTuple):
    """A function that is defined: what it belongs to and, of a method, its code, both weakly."""

    anchor: Callable[[], Any]
    code: Callable[[], Any]
    definition: Definition


def _nothing() -> None:
    """Stands for the code of what is not a method."""


class Definitions:
    """Makes definitions, one for each function as long as that lives.

    Args:
        forget: Called with the number of each definition that is gone.
    """

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget
        self._numbers = itertools.count()
        # By ids, which say something only as long as the references show the same objects.
        self._of_functions: dict[tuple[int, int], _Known] = {}

    def of_function(self, function: Callable[..., Any]) -> Definition:
        """Returns the definition of a function: the same for the same function.

        Raises:
            ShippingError: If the function or something that it captured cannot be sent.
        """
        anchor: Any = function
        code: Any = None
        if isinstance(function, types.MethodType):  # itself made anew whenever it is asked for
            anchor, code = function.__self__, function.__func__
        key = (id(anchor), id(code))
        known = self._of_functions.get(key)
        if known is not None and known.anchor() is anchor and known.code() is code:
            return known.definition
        definition = self.make("function", function)
        functions = self._of_functions

        def forget(_: weakref.ref[Any]) -> None:
            functions.pop(key, None)

        # What cannot be referred to weakly is sent anew every time.
        with contextlib.suppress(TypeError):
            functions[key] = _Known(
                weakref.ref(anchor, forget),
                _nothing if code is None else weakref.ref(code, forget),
                definition,
            )
        return definition

    def make(self, kind: str, content: Any) -> Definition:
        """Returns a new definition."""
        try:
            parcel = pack(content)
        except Exception as error:
            raise check_parts(_captured(content), error, _FIX) from error
        definition = Definition(next(self._numbers), kind, parcel)
        weakref.finalize(definition, self._forget, definition.number).atexit = False
        return definition


def _captured(content: Any) -> list[tuple[str, Any]]:
    """Returns what a function captured, each with a name, and the function itself last."""
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
