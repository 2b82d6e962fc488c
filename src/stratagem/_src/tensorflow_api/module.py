"""``tf.Module``: an object that finds the variables and modules in its attributes; ``tf.name_scope``."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.variables.foreign_variables import (
    is_variable,
    register_trackable,
    trackable_variables,
    variable_of,
)
from stratagem._src.variables.variable import Variable

__all__ = ["Module", "name_scope"]

_scopes = threading.local()


class name_scope:  # noqa: N801 (TensorFlow's name)
    """Gives operations in a block a name that profiles and compiled programs show.

    Differs from TensorFlow: names need not be unique, and variables are not renamed.

    JAX equivalent: ``jax.named_scope``.

    >>> with name_scope("layer") as scope:
    ...     print(scope)
    layer/
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"The name of a name_scope must be a string, got {name!r}.")
        self._name = name
        self._entered: list[tuple[str, Any]] = []

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._name

    def __enter__(self) -> str:
        outer = getattr(_scopes, "name", "")
        # A name with a slash at its end is a whole one, as a scope that was entered before.
        whole = self._name if self._name.endswith("/") else f"{outer}{self._name}/"
        scope = jax.named_scope(self._name.rstrip("/")) if self._name else None
        if scope is not None:
            scope.__enter__()
        self._entered.append((outer, scope))
        _scopes.name = whole if self._name else ""
        return whole if self._name else ""

    def __exit__(self, *raised: Any) -> None:
        _scopes.name, scope = self._entered.pop()
        if scope is not None:
            scope.__exit__(*raised)


class Module:
    """A class to derive from: ``variables`` and ``submodules`` are what its attributes hold.

    Keras layers and models in attributes count with their variables. ``tf.train.Checkpoint(model=module)``
    saves the variables by the names of the attributes.

    >>> import stratagem as sg
    >>> class Dense(sg.Module):
    ...     def __init__(self, inputs, outputs, name=None):
    ...         super().__init__(name)
    ...         self.w = sg.Variable(sg.ones([inputs, outputs]))
    ...         self.b = sg.Variable(sg.zeros([outputs]))
    >>> layer = Dense(3, 2)
    >>> layer.name, [v.shape for v in layer.trainable_variables]
    ('dense', [TensorShape([2]), TensorShape([3, 2])])

    Args:
        name: A Python identifier; default: the class's name in snake case.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = re.sub(
                r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__
            )
            name = name.lower()
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgumentError(
                f"The name of a Module must be a Python identifier, got {name!r}."
            )
        self._name = name

    @property
    def name(self) -> str:
        """The module's name."""
        return self._name

    @property
    def name_scope(self) -> name_scope:
        """A scope of the module's name."""
        return name_scope(self.name)

    @property
    def variables(self) -> tuple[Any, ...]:
        """Variables in attributes, by the attributes' names, and then those of modules in them."""
        return tuple(self._walk(lambda value: True))

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The variables that are trainable."""
        return tuple(self._walk(lambda value: bool(value.trainable)))

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        """The variables that are not trainable."""
        return tuple(self._walk(lambda value: not value.trainable))

    @property
    def submodules(self) -> tuple[Module, ...]:
        """Modules in attributes, and the modules in them."""
        found: list[Module] = []
        for value in self._parts():
            if isinstance(value, Module) and not any(value is one for one in found):
                found.append(value)
        for module in list(found):
            found += [one for one in module.submodules if not any(one is other for other in found)]
        return tuple(found)

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a method, whose operations get the module's name.

        >>> class Doubled(Module):
        ...     @Module.with_name_scope
        ...     def __call__(self, x):
        ...         return x * 2
        >>> Doubled()(3)
        6
        """

        @functools.wraps(method)
        def scoped(self: Self, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return scoped

    def _parts(self) -> Iterator[Any]:
        """Yields what attributes hold, by name, lists and dictionaries opened."""
        for key in sorted(vars(self), key=str):
            yield from _opened(vars(self)[key])

    def _walk(self, wanted: Callable[[Any], bool]) -> Iterator[Any]:
        seen: set[int] = set()
        for module in (self, *self.submodules):
            for part in module._parts():
                for variable in _variables_of(part):
                    if id(variable) not in seen and wanted(variable):
                        seen.add(id(variable))
                        yield variable

    def named_parts(self) -> dict[str, Any]:
        """Returns the variables of attributes as nested dictionaries and lists, for checkpoints."""
        return {
            key: found
            for key in sorted(vars(self), key=str)
            if (found := _named(vars(self)[key])) is not None
        }


def _opened(value: PyTree) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _opened(value[key])
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _opened(item)
    else:
        yield value


def _variables_of(part: Leaf) -> list[Variable]:
    if isinstance(part, Module):
        return []
    if is_variable(part):
        return [variable_of(part)]
    held = trackable_variables(part)
    return (
        [] if held is None else [variable_of(v) for v in jax.tree.leaves(held, is_leaf=is_variable)]
    )


def _named(value: PyTree) -> Any:
    """Returns the part of a structure that holds variables, or ``None``."""
    if isinstance(value, Module):
        return value.named_parts() or None
    if is_variable(value):
        return value
    if isinstance(value, Mapping):
        return {str(k): f for k, v in value.items() if (f := _named(v)) is not None} or None
    if isinstance(value, (list, tuple)):
        return {str(i): f for i, v in enumerate(value) if (f := _named(v)) is not None} or None
    return trackable_variables(value)


register_trackable(Module, Module.named_parts)
