"""``tf.Module``, which finds the variables and modules in its attributes, and ``tf.name_scope``."""

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
    """Names the operations of a block in profiles and compiled programs.

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
        """The name."""
        return self._name

    def __enter__(self) -> str:
        outer = getattr(_scopes, "name", "")
        # A trailing slash marks an absolute name, such as that of a scope that was entered before.
        full_name = self._name if self._name.endswith("/") else f"{outer}{self._name}/"
        scope = jax.named_scope(self._name.rstrip("/")) if self._name else None
        if scope is not None:
            scope.__enter__()
        self._entered.append((outer, scope))
        _scopes.name = full_name if self._name else ""
        return full_name if self._name else ""

    def __exit__(self, *raised: Any) -> None:
        _scopes.name, scope = self._entered.pop()
        if scope is not None:
            scope.__exit__(*raised)


class Module:
    """A base class that collects the variables and submodules in its attributes.

    This includes the variables of Keras layers and models. ``tf.train.Checkpoint(model=module)`` saves the
    variables under the names of the attributes.

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
        """A name scope with the module's name."""
        return name_scope(self.name)

    @property
    def variables(self) -> tuple[Any, ...]:
        """Variables in attributes, sorted by the attributes' names, then those of submodules."""
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
        """Modules in attributes, and their submodules."""
        found: list[Module] = []
        for value in self._parts():
            if isinstance(value, Module) and not any(value is one for one in found):
                found.append(value)
        for module in list(found):
            found += [one for one in module.submodules if not any(one is other for other in found)]
        return tuple(found)

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a method to run in the module's name scope.

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
        """Yields the values of attributes, sorted by name; descends into lists and dictionaries."""
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
        """Returns the variables in attributes as nested dictionaries, for checkpoints."""
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
    """Returns the variables of a structure under their names, or ``None`` if it has none."""
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
