"""Pytree utilities that also flatten containers which JAX treats as leaves.

To JAX a pytree consists of tuples, lists, dicts and registered classes, and everything else is a leaf.
Users also pass subclasses of these, custom mappings, attrs classes and dataclasses. ``flatten`` returns the
leaves inside such objects too, and a treedef from which ``jax.tree.unflatten`` rebuilds objects of the same
classes. JAX's global registry is not modified.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from stratagem._src.core.types import Leaf, PyTree

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
    """Base class of variables and distributed values, which are leaves of structures.

    Attributes:
        travels: Whether each replica gets its own component in place of the object.
    """

    __slots__ = ()

    travels: ClassVar[bool] = True


class _Kind(Protocol):
    """How to flatten and rebuild objects of some classes."""

    def flatten(self, value: Leaf) -> tuple[Hashable, Sequence[Any]]:
        """Returns the object's static form, apart from its class, and its children."""

    def unflatten(self, cls: type, form: Any, children: Sequence[Any]) -> Any:
        """Returns an object with a class, a form and children."""


class Container:
    """The class and form of a container object: everything except its children.

    Equal for objects that differ only in their children.
    """

    __slots__ = ("_form", "_kind", "cls")

    def __init__(self, kind: _Kind, cls: type, form: Hashable) -> None:
        self._kind = kind
        self._form = form
        self.cls = cls

    def make(self, children: Sequence[Any]) -> Any:
        """Returns an object of this class and form with other children."""
        return self._kind.unflatten(self.cls, self._form, children)

    @property
    def exact_form(self) -> Any:
        """The form including the order of a mapping's keys, which ``==`` does not compare."""
        return list(self._form.keys) if isinstance(self._form, _Keys) else self._form

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Container) and (
            (self.cls, self._kind, self._form) == (other.cls, other._kind, other._form)
        )

    def __hash__(self) -> int:
        try:
            return hash((self.cls, self._form))
        except TypeError:  # a form from __tf_flatten__ may be unhashable
            return hash(self.cls)

    def __repr__(self) -> str:
        return f"{self.cls.__qualname__}{self._form!r}"


def open_container(value: Leaf) -> tuple[Container, Sequence[Any]] | None:
    """Returns the form and the children of an object that JAX treats as a leaf; ``None`` for a true leaf.

    Subclasses of lists, tuples and dicts, other mappings, attrs classes, and classes with
    ``__tf_flatten__`` and ``__tf_unflatten__`` are containers. A dataclass is one if it contains arrays or
    per-replica values; otherwise, such as a configuration or a model, it is a leaf.
    """
    if isinstance(value, (jax.Array, np.ndarray, np.generic, ValueLeaf)):
        _leaf_classes.add(type(value))
        return None
    kind = _kind_of(type(value))
    if kind is None:
        return None
    form, children = kind.flatten(value)
    if kind is _DATACLASS and not any(map(_has_distributable_leaf, children)):
        return None
    return Container(kind, type(value), form), children


def flatten(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Returns the leaves of a structure and its treedef, as ``jax.tree.flatten`` does.

    ``jax.tree.unflatten(treedef, leaves)`` rebuilds a structure of the same classes.

    Args:
        tree: The structure.
        is_leaf: Returns whether an object is a leaf too.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf)
    if _leaf_classes.issuperset(map(type, leaves)):
        return leaves, structure
    unknown = (leaf for leaf in leaves if type(leaf) not in _leaf_classes)
    if all(open_container(leaf) is None for leaf in unknown):
        return leaves, structure
    return jax.tree.flatten(_open_all(tree, is_leaf), is_leaf)


def has_containers(structure: PyTree) -> bool:
    """Returns whether a treedef contains containers that JAX alone would treat as leaves."""
    node = structure.node_data()
    return (node is not None and node[0] is _Opened) or any(
        has_containers(child) for child in structure.children()
    )


def leaves_of(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Returns the leaves of a structure."""
    return flatten(tree, is_leaf)[0]


def map_structure(
    fn: Callable[..., Any], tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Applies ``fn`` to each leaf of a structure."""
    leaves, structure = flatten(tree, is_leaf)
    return jax.tree.unflatten(structure, list(map(fn, leaves)))


class _Opened:
    """A registered pytree node that replaces a container object; unflattening rebuilds the object."""

    __slots__ = ("children", "container")

    def __init__(self, container: Container, children: list[Any]) -> None:
        self.container = container
        self.children = children


jax.tree_util.register_pytree_node(
    _Opened,
    lambda opened: (opened.children, opened.container),
    lambda container, children: container.make(list(children)),
)


def _open_all(tree: PyTree, is_leaf: Callable[[Any], bool] | None) -> Any:
    def open_leaf(leaf: Leaf) -> Any:
        opened = None if is_leaf is not None and is_leaf(leaf) else open_container(leaf)
        if opened is None:
            return leaf
        container, children = opened
        return _Opened(container, [_open_all(child, is_leaf) for child in children])

    return jax.tree.map(open_leaf, tree, is_leaf=is_leaf)


def _has_distributable_leaf(child: PyTree) -> bool:
    return any(
        leaf.travels
        if isinstance(leaf, ValueLeaf)
        else isinstance(leaf, (jax.Array, np.ndarray, np.generic))
        for leaf in leaves_of(child, lambda x: isinstance(x, ValueLeaf))
    )


# --- kinds ----------------------------------------------------------------------------------------


class _Keys:
    """The keys of a mapping; their order is kept but does not count for equality."""

    __slots__ = ("default_factory", "keys")

    def __init__(self, keys: tuple[Hashable, ...], default_factory: Any) -> None:
        self.keys = keys
        self.default_factory = default_factory

    def in_common_order(self) -> Sequence[Any]:
        """Returns the keys in an order that is the same for all mappings with these keys."""
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
    def flatten(self, value: Mapping[Any, Any]) -> tuple[Hashable, Sequence[Any]]:
        factory = value.default_factory if isinstance(value, defaultdict) else None
        keys = _Keys(tuple(value), factory)
        return keys, [value[key] for key in keys.in_common_order()]

    def unflatten(self, cls: Any, form: _Keys, children: Sequence[Any]) -> Any:
        by_key = dict(zip(form.in_common_order(), children, strict=True))
        items = {key: by_key[key] for key in form.keys}
        if issubclass(cls, defaultdict):
            return cls(form.default_factory, items)
        try:
            return cls(items)
        except TypeError as error:
            raise TypeError(
                f"A mapping in an argument or a result must be constructible from a dict of its items, but "
                f"{cls.__qualname__}(a_dict) failed: {error}. Support that constructor, or pass a dict."
            ) from error


class _SequenceKind:
    def flatten(self, value: Sequence[Any]) -> tuple[Hashable, Sequence[Any]]:
        return len(value), list(value)

    def unflatten(self, cls: type, form: int, children: Sequence[Any]) -> Any:
        return cls(children)


class _FieldsKind:
    """Objects with declared fields, rebuilt without calling ``__init__``.

    So the checks, conversions and derived fields of ``__init__`` are not applied twice.
    """

    def __init__(self, field_names: Callable[[type], Sequence[str]]) -> None:
        self._field_names = field_names

    def flatten(self, value: Leaf) -> tuple[Hashable, Sequence[Any]]:
        names = tuple(name for name in self._field_names(type(value)) if hasattr(value, name))
        return names, [getattr(value, name) for name in names]

    def unflatten(self, cls: type, form: tuple[str, ...], children: Sequence[Any]) -> Any:
        made: Any = object.__new__(cls)
        for name, child in zip(form, children, strict=True):
            object.__setattr__(made, name, child)
        return made


class _SelfDescribedKind:
    """Objects that flatten themselves, with TensorFlow's ``__tf_flatten__`` and ``__tf_unflatten__``."""

    def flatten(self, value: Leaf) -> tuple[Hashable, Sequence[Any]]:
        metadata, children = value.__tf_flatten__()
        return metadata, children

    def unflatten(self, cls: Any, form: Any, children: Sequence[Any]) -> Any:
        return cls.__tf_unflatten__(form, tuple(children))


_MAPPING = _MappingKind()
_SEQUENCE = _SequenceKind()
_SELF_DESCRIBED = _SelfDescribedKind()
_DATACLASS = _FieldsKind(lambda cls: [field.name for field in dataclasses.fields(cls)])
_ATTRS = _FieldsKind(lambda cls: [attribute.name for attribute in cls.__attrs_attrs__])  # type: ignore[attr-defined]

# Known classes of leaves, so that most structures take the fast path; array classes are added when seen.
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
