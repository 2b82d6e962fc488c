"""The call signature: the cache key of a call, which decides whether a new program is compiled."""

from __future__ import annotations

import weakref
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.input_kinds import DrawableIterator, LoopedOver
from stratagem._src.core.torch_tensors import check_not_tensor
from stratagem._src.core.types import ArraySpec, Leaf
from stratagem._src.execution.static_key import form_key, static_key
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.array_operators import operand_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica

if TYPE_CHECKING:
    from stratagem._src.execution.draws import AnyIterator

__all__ = [
    "ArrayLeaf",
    "CallInputs",
    "IteratorLeaf",
    "SettingsChanged",
]

_STATIC = 0
_ARRAY = 1
_PER_REPLICA = 2
_ITERATOR = 3


class SettingsChanged(Exception):
    """A program is called under other JAX settings, or in another context, than it was compiled for."""


class ArrayLeaf(NamedTuple):
    """The signature of an argument that is an array; equal for arrays that one fast path can take.

    Attributes:
        leaf_type: The argument's type.
        aval: Shape, dtype and weak type of the array.
        group: The replicas, if the argument is per-replica.
        scalar: Whether a per-replica argument is a scalar in each replica.
        committed_to: The sharding that the array is committed to, if any.
    """

    leaf_type: type
    aval: ArraySpec
    group: ReplicaGroup | None
    scalar: bool
    committed_to: Any


class IteratorLeaf(NamedTuple):
    """The signature of an argument that is an iterator.

    Attributes:
        leaf_type: The argument's type.
    """

    leaf_type: type


class CallInputs:
    """The arguments of one call, split into arrays, iterators and static values.

    Attributes:
        arrays: The arrays, which are inputs of the program.
        iterators: The iterators over datasets, from which the program draws elements.
        has_dataset: Whether an argument is a dataset, which can only be looped over.
        key: The cache key: equal for calls that can use the same program.
        traced: Whether an argument is a tracer of an outer JAX transformation.
        ragged: Whether the shapes of a per-replica argument differ, so that no program can take it.
        needs: Weak references to arguments that the key compares by identity and does not keep alive.
        structure: The structure of the arguments.
        form: Distinguishes structures that compare equal; see ``form_key``.
        flat: Whether the positional arguments are the leaves, without containers or keyword arguments.
    """

    __slots__ = (
        "_kinds",
        "_static",
        "_types",
        "arrays",
        "flat",
        "form",
        "has_dataset",
        "iterators",
        "key",
        "needs",
        "ragged",
        "structure",
        "traced",
    )

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self.structure = structures.flatten((args, kwargs), is_value_leaf)
        self._types = [type(leaf) for leaf in leaves]
        self.flat = not kwargs and len(leaves) == len(args) and all(map(is_, leaves, args))
        self.arrays: list[Any] = []
        self.iterators: list[AnyIterator] = []
        self.traced = self.ragged = self.has_dataset = False
        self._static: list[Any] = []
        self.needs: list[weakref.ref[Any]] = []
        self._kinds = [self._take(leaf) for leaf in leaves]
        self.form = () if self.flat else form_key(self.structure, self.needs)
        self.key = (self.structure, self.form, *self._kinds)

    def without_arrays(self) -> CallInputs:
        """Returns a copy that does not keep the arrays and iterators alive."""
        described = CallInputs.__new__(CallInputs)
        described.structure, described._kinds = self.structure, self._kinds
        described.form, described.flat, described._types = self.form, self.flat, self._types
        described._static, described.key = self._static, self.key
        described.traced, described.ragged = self.traced, self.ragged
        described.has_dataset = self.has_dataset
        described.arrays, described.needs = [], []
        described.iterators = []
        return described

    def _take(self, leaf: Leaf) -> tuple[Any, ...]:
        """Classifies one leaf and returns its part of the key."""
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
        # np.bytes_ and np.str_ are NumPy scalars as well as bytes and str. They are static.
        elif isinstance(leaf, (np.ndarray, np.generic, Mirrored)) and not isinstance(
            leaf, (bytes, str)
        ):
            # The program gets the JAX array that this becomes: of a canonical dtype, and never weakly
            # typed.
            array = operand_of(leaf)
            kind = (_ARRAY, array.shape, jax.dtypes.canonicalize_dtype(array.dtype), False)
        elif isinstance(leaf, DrawableIterator):
            self.iterators.append(cast("AnyIterator", leaf))
            return (_ITERATOR, type(leaf))
        else:
            if isinstance(leaf, LoopedOver):
                self.has_dataset = True
            check_not_tensor(leaf)
            self._static.append(leaf)
            return (_STATIC, static_key(leaf, self.needs))
        if isinstance(array, jax.core.Tracer):
            self.traced = True
        self.arrays.append(array)
        return kind

    def is_plain(self) -> bool:
        """Returns whether all arguments are JAX arrays, per-replica values of them, or iterators."""
        return all(
            kind[0] in (_PER_REPLICA, _ITERATOR)
            or (kind[0] == _ARRAY and hasattr(leaf_type, "weak_type"))
            for kind, leaf_type in zip(self._kinds, self._types, strict=True)
        )

    def leaves(self) -> list[ArrayLeaf | IteratorLeaf]:
        """Returns the signature of each argument; only for plain inputs."""
        arrays = iter(self.arrays)
        leaves: list[ArrayLeaf | IteratorLeaf] = []
        for leaf_type, kind in zip(self._types, self._kinds, strict=True):
            if kind[0] == _ITERATOR:
                leaves.append(IteratorLeaf(leaf_type))
                continue
            array = next(arrays)
            group, scalar = kind[3:] if kind[0] == _PER_REPLICA else (None, False)
            # JAX moves an uncommitted array to where the program runs, and refuses to move a committed one.
            committed_to = array.sharding if array.committed else None
            leaves.append(ArrayLeaf(leaf_type, array.aval, group, scalar, committed_to))
        return leaves

    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of the arrays."""
        return [
            jax.ShapeDtypeStruct(kind[1], kind[2], weak_type=kind[0] == _ARRAY and kind[3])
            for kind in self._kinds
            if kind[0] in (_ARRAY, _PER_REPLICA)
        ]

    def groups(self) -> list[ReplicaGroup]:
        """Returns the replica groups of per-replica arguments."""
        return [kind[3] for kind in self._kinds if kind[0] == _PER_REPLICA]

    def plain_positions(self) -> list[int]:
        """Returns the positions of the arrays that are not per-replica."""
        kinds = [kind[0] for kind in self._kinds if kind[0] in (_ARRAY, _PER_REPLICA)]
        return [position for position, kind in enumerate(kinds) if kind == _ARRAY]

    def rebuild(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns positional and keyword arguments with the arrays of the call replaced by others."""
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
        """Returns how many arguments are Python numbers; each value of those needs its own program."""
        return sum(isinstance(leaf, (int, float)) for leaf in self._static)
