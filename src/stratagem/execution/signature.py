"""What distinguishes one call of a function from another: when a new program is needed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from stratagem.core import structures
from stratagem.core.replica_group import ReplicaGroup
from stratagem.input.distributed_iterator import DistributedIterator
from stratagem.values.array_operators import operand_of
from stratagem.values.distributed_values import is_value_leaf
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica
from stratagem.values.variable import Variable

__all__ = ["CallInputs", "SettingsChanged"]

_STATIC = 0
_ARRAY = 1
_PER_REPLICA = 2
_ITERATOR = 3


class SettingsChanged(Exception):
    """A program is called under other JAX settings, or other circumstances, than it was made for."""


class CallInputs:
    """The arguments of one call, taken apart.

    Attributes:
        arrays: The arrays that go into the program.
        iterators: The distributed iterators, from which the program draws elements.
        key: Equal for calls that can use the same program.
        traced: Whether an argument is a tracer of an outer JAX transformation.
        ragged: Whether replicas' arrays differ in shape, so that no program can take them.
        structure: The structure of the arguments.
        flat: Whether the arguments are the leaves of that structure.
    """

    __slots__ = (
        "_kinds",
        "_static",
        "_types",
        "arrays",
        "flat",
        "iterators",
        "key",
        "ragged",
        "structure",
        "traced",
    )

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self.structure = structures.flatten((args, kwargs), is_value_leaf)
        self._types = [type(leaf) for leaf in leaves]
        self.flat = not kwargs and len(leaves) == len(args)
        self.arrays: list[Any] = []
        self.iterators: list[DistributedIterator] = []
        self.traced = self.ragged = False
        self._static: list[Any] = []
        self._kinds = [self._take(leaf) for leaf in leaves]
        self.key = (self.structure, *self._kinds)

    def without_arrays(self) -> CallInputs:
        """Returns these inputs without holding on to the arrays."""
        described = CallInputs.__new__(CallInputs)
        described.structure, described._kinds = self.structure, self._kinds
        described._static, described.key = self._static, self.key
        described.traced, described.ragged = self.traced, self.ragged
        described.arrays = []
        described.iterators = []
        return described

    def _take(self, leaf: Any) -> tuple[Any, ...]:
        """Sorts one leaf in and returns its part of the key."""
        kind: tuple[Any, ...]
        if isinstance(leaf, PerReplica):
            group = leaf._group
            array = leaf.global_array(group) if group is not None else None
            if array is None:
                self.ragged = True
                return (_STATIC, None)
            kind = (_PER_REPLICA, array.shape, array.dtype, group, leaf.scalar)
        elif isinstance(leaf, jax.Array):
            array = leaf
            kind = (_ARRAY, array.shape, array.dtype, getattr(array, "weak_type", False))
        elif isinstance(leaf, (np.ndarray, np.generic, Mirrored)):
            array = operand_of(leaf)
            kind = (_ARRAY, array.shape, jax.dtypes.canonicalize_dtype(array.dtype), False)
        elif isinstance(leaf, DistributedIterator):
            self.iterators.append(leaf)
            return (_ITERATOR,)
        else:
            self._static.append(leaf)
            return (_STATIC, _static_key(leaf))
        if isinstance(array, jax.core.Tracer):
            self.traced = True
        self.arrays.append(array)
        return kind

    def has_only_arrays(self) -> bool:
        """Returns whether the arguments hold nothing but JAX arrays and per-replica values of them."""
        return all(
            kind[0] == _PER_REPLICA or (kind[0] == _ARRAY and hasattr(leaf_type, "weak_type"))
            for kind, leaf_type in zip(self._kinds, self._types, strict=True)
        )

    def array_leaves(self) -> list[tuple[Any, Any, ReplicaGroup | None, bool]]:
        """Returns type and aval of each argument, and group and whether scalar if it is per-replica.

        Only for inputs that hold nothing but arrays.
        """
        return [
            (leaf_type, array.aval, *(kind[3:] if kind[0] == _PER_REPLICA else (None, False)))
            for leaf_type, kind, array in zip(self._types, self._kinds, self.arrays, strict=True)
        ]

    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of the arrays."""
        return [
            jax.ShapeDtypeStruct(kind[1], kind[2], weak_type=kind[0] == _ARRAY and kind[3])
            for kind in self._kinds
            if kind[0] in (_ARRAY, _PER_REPLICA)
        ]

    def groups(self) -> list[ReplicaGroup]:
        """Returns the replicas that per-replica arguments live on."""
        return [kind[3] for kind in self._kinds if kind[0] == _PER_REPLICA]

    def plain_positions(self) -> list[int]:
        """Returns which of the arrays are not per-replica."""
        kinds = [kind[0] for kind in self._kinds if kind[0] in (_ARRAY, _PER_REPLICA)]
        return [position for position, kind in enumerate(kinds) if kind == _ARRAY]

    def rebuild(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns positional and keyword arguments with other arrays in place of the call's."""
        remaining, static, iterators = iter(arrays), iter(self._static), iter(self.iterators)
        leaves: list[Any] = []
        for kind in self._kinds:
            if kind[0] == _STATIC:
                leaves.append(next(static))
            elif kind[0] == _ITERATOR:
                leaves.append(next(iterators))
            elif kind[0] == _ARRAY:
                leaves.append(next(remaining))
            else:
                leaves.append(PerReplica.from_global(kind[3], next(remaining), scalar=kind[4]))
        args, kwargs = jax.tree.unflatten(self.structure, leaves)
        return args, kwargs

    def num_python_numbers(self) -> int:
        """Returns how many arguments are Python numbers, each value of which needs a program."""
        return sum(isinstance(leaf, (int, float)) for leaf in self._static)


class _Identity:
    """Key of an object that cannot be hashed: equal only to itself."""

    __slots__ = ("_object",)

    def __init__(self, value: Any) -> None:
        self._object = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)


def _static_key(leaf: Any) -> Any:
    if isinstance(leaf, float):
        return float, repr(leaf)
    if isinstance(leaf, Variable):
        return leaf.ref()
    try:
        hash(leaf)
    except TypeError:
        return _Identity(leaf)
    return type(leaf), leaf
