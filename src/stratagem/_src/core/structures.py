"""Structures: what arrays travel in as arguments and results.

To JAX a structure is made of tuples, lists, dicts and registered classes, and everything else is a leaf.
Users' programs also pass subclasses of these, mappings of their own, attrs classes and dataclasses. They
are opened here: ``flatten`` returns the leaves inside, and a structure from which ``jax.tree.unflatten``
makes objects of the same classes again. JAX's own registry is left alone.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

__all__ = [
    "Container",
    "ValueLeaf",
    "flatten",
    "has_containers",
    "leaves_of",
    "map_structure",
    "open_container",
]


class ValueLeaf:
    """Base of variables and distributed values: structures are not flattened into them.

    Attributes:
        travels: Whether replicas get something else in its place, each its own.
    """

    __slots__ = ()

    travels: ClassVar[bool] = True


class _Kind(Protocol):
    """A way to take objects apart and to make them again."""

    def take_apart(self, value: Any) -> tuple[Hashable, Sequence[Any]]:
        """Returns what, beside its class, tells the object's form, and its parts."""

    def put_together(self, cls: type, form: Any, parts: Sequence[Any]) -> Any:
        """Returns an object of a class, a form and parts."""


class Container:
    """The class and form of an opened object: everything but its parts.

    Equal for objects that differ in their parts only.
    """

    __slots__ = ("_form", "_kind", "cls")

    def __init__(self, kind: _Kind, cls: type, form: Hashable) -> None:
        self._kind = kind
        self._form = form
        self.cls = cls

    def make(self, parts: Sequence[Any]) -> Any:
        """Returns an object of this class and form with other parts."""
        return self._kind.put_together(self.cls, self._form, parts)

    @property
    def exact_form(self) -> Any:
        """What else tells the form: the keys of a mapping in their order, which ``==`` does not compare."""
        return list(self._form.keys) if isinstance(self._form, _Keys) else self._form

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Container) and (
            (self.cls, self._kind, self._form) == (other.cls, other._kind, other._form)
        )

    def __hash__(self) -> int:
        try:
            return hash((self.cls, self._form))
        except TypeError:  # the form comes from the class itself, and may be anything
            return hash(self.cls)

    def __repr__(self) -> str:
        return f"{self.cls.__qualname__}{self._form!r}"


def open_container(value: Any) -> tuple[Container, Sequence[Any]] | None:
    """Returns an object that JAX takes for a leaf as its form and its parts; ``None`` for a true leaf.

    Subclasses of lists, tuples and dicts, other mappings, attrs classes, and classes with
    ``__tf_flatten__`` and ``__tf_unflatten__`` are opened. A dataclass is if arrays or per-replica values
    are in it; otherwise it stays the one object that it is, such as a configuration or a model.
    """
    if isinstance(value, (jax.Array, np.ndarray, np.generic, ValueLeaf)):
        _leaf_classes.add(type(value))
        return None
    kind = _kind_of(type(value))
    if kind is None:
        return None
    form, parts = kind.take_apart(value)
    if kind is _DATACLASS and not any(map(_has_something_to_hand_out, parts)):
        return None
    return Container(kind, type(value), form), parts


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Returns the leaves of a structure and its form, as ``jax.tree.flatten`` does.

    ``jax.tree.unflatten(form, leaves)`` makes a structure of the same classes.

    Args:
        tree: The structure.
        is_leaf: Says what else is not taken apart.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf)
    if _leaf_classes.issuperset(map(type, leaves)):
        return leaves, structure
    unknown = (leaf for leaf in leaves if type(leaf) not in _leaf_classes)
    if all(open_container(leaf) is None for leaf in unknown):
        return leaves, structure
    return jax.tree.flatten(_open_all(tree, is_leaf), is_leaf)


def has_containers(structure: Any) -> bool:
    """Returns whether objects were opened to get this form, which JAX alone would take for leaves."""
    node = structure.node_data()
    return (node is not None and node[0] is _Opened) or any(
        has_containers(child) for child in structure.children()
    )


def leaves_of(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Returns the leaves of a structure."""
    return flatten(tree, is_leaf)[0]


def map_structure(
    fn: Callable[..., Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Returns the structure with ``fn`` of each leaf in its place."""
    leaves, structure = flatten(tree, is_leaf)
    return jax.tree.unflatten(structure, list(map(fn, leaves)))


class _Opened:
    """Stands for an opened object on its way through JAX, which makes the object again."""

    __slots__ = ("container", "parts")

    def __init__(self, container: Container, parts: list[Any]) -> None:
        self.container = container
        self.parts = parts


jax.tree_util.register_pytree_node(
    _Opened,
    lambda opened: (opened.parts, opened.container),
    lambda container, parts: container.make(list(parts)),
)


def _open_all(tree: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    def open_leaf(leaf: Any) -> Any:
        opened = None if is_leaf is not None and is_leaf(leaf) else open_container(leaf)
        if opened is None:
            return leaf
        container, parts = opened
        return _Opened(container, [_open_all(part, is_leaf) for part in parts])

    return jax.tree.map(open_leaf, tree, is_leaf=is_leaf)


def _has_something_to_hand_out(part: Any) -> bool:
    return any(
        leaf.travels
        if isinstance(leaf, ValueLeaf)
        else isinstance(leaf, (jax.Array, np.ndarray, np.generic))
        for leaf in leaves_of(part, lambda x: isinstance(x, ValueLeaf))
    )


# --- kinds ----------------------------------------------------------------------------------------


class _Keys:
    """The keys of a mapping; their order is kept but does not tell mappings apart."""

    __slots__ = ("default_factory", "keys")

    def __init__(self, keys: tuple[Hashable, ...], default_factory: Any) -> None:
        self.keys = keys
        self.default_factory = default_factory

    def in_common_order(self) -> Sequence[Any]:
        """Returns the keys in the same order for all mappings that have them."""
        keys: list[Any] = list(self.keys)
        try:
            return sorted(keys)
        except TypeError:
            return sorted(keys, key=lambda key: (type(key).__qualname__, repr(key)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Keys)
            and set(self.keys) == set(other.keys)
            and self.default_factory is other.default_factory
        )

    def __hash__(self) -> int:
        return hash(frozenset(self.keys))

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.keys))})"


class _MappingKind:
    def take_apart(self, value: Mapping[Any, Any]) -> tuple[Hashable, Sequence[Any]]:
        factory = value.default_factory if isinstance(value, defaultdict) else None
        keys = _Keys(tuple(value), factory)
        return keys, [value[key] for key in keys.in_common_order()]

    def put_together(self, cls: Any, form: _Keys, parts: Sequence[Any]) -> Any:
        by_key = dict(zip(form.in_common_order(), parts, strict=True))
        items = {key: by_key[key] for key in form.keys}
        if issubclass(cls, defaultdict):
            return cls(form.default_factory, items)
        try:
            return cls(items)
        except TypeError as error:
            raise TypeError(
                f"A mapping in an argument or a result is made again from a dict of its items, and "
                f"{cls.__qualname__} cannot be: {error}. Let {cls.__qualname__}(a_dict) work, or pass a "
                "dict."
            ) from error


class _SequenceKind:
    def take_apart(self, value: Sequence[Any]) -> tuple[Hashable, Sequence[Any]]:
        return len(value), list(value)

    def put_together(self, cls: type, form: int, parts: Sequence[Any]) -> Any:
        return cls(parts)


class _FieldsKind:
    """Objects with declared attributes, made again without calling their class.

    So what it derives, checks or converts when an object is made is not done twice.
    """

    def __init__(self, field_names: Callable[[type], Sequence[str]]) -> None:
        self._field_names = field_names

    def take_apart(self, value: Any) -> tuple[Hashable, Sequence[Any]]:
        names = tuple(name for name in self._field_names(type(value)) if hasattr(value, name))
        return names, [getattr(value, name) for name in names]

    def put_together(self, cls: type, form: tuple[str, ...], parts: Sequence[Any]) -> Any:
        made: Any = object.__new__(cls)
        for name, part in zip(form, parts, strict=True):
            object.__setattr__(made, name, part)
        return made


class _SelfDescribedKind:
    """Objects that say themselves how they are taken apart, as TensorFlow asks them."""

    def take_apart(self, value: Any) -> tuple[Hashable, Sequence[Any]]:
        metadata, parts = value.__tf_flatten__()
        return metadata, parts

    def put_together(self, cls: Any, form: Any, parts: Sequence[Any]) -> Any:
        return cls.__tf_unflatten__(form, tuple(parts))


_MAPPING = _MappingKind()
_SEQUENCE = _SequenceKind()
_SELF_DESCRIBED = _SelfDescribedKind()
_DATACLASS = _FieldsKind(lambda cls: [field.name for field in dataclasses.fields(cls)])
_ATTRS = _FieldsKind(lambda cls: [attribute.name for attribute in cls.__attrs_attrs__])  # type: ignore[attr-defined]

# Classes of leaves, so that most structures need no second look; classes of arrays are added when met.
_leaf_classes: set[type] = {type(None), bool, int, float, complex, str, bytes}
_kinds: weakref.WeakKeyDictionary[type, _Kind | None] = weakref.WeakKeyDictionary()


def _kind_of(cls: type) -> _Kind | None:
    try:
        return _kinds[cls]
    except KeyError:
        kind = _kinds[cls] = _find_kind(cls)
        return kind


def _find_kind(cls: type) -> _Kind | None:
    if hasattr(cls, "__tf_flatten__") and hasattr(cls, "__tf_unflatten__"):
        return _SELF_DESCRIBED
    if issubclass(cls, Mapping):
        return _MAPPING
    if issubclass(cls, (list, tuple)):
        return _SEQUENCE
    if hasattr(cls, "__attrs_attrs__"):
        return _ATTRS
    return _DATACLASS if dataclasses.is_dataclass(cls) else None
