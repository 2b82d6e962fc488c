"""What distinguishes one call of a function from another: when a new program is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem.core.replica_group import ReplicaGroup
from stratagem.core.tracing import is_tracer
from stratagem.values.array_operators import array_of
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica
from stratagem.values.regroup import is_value_leaf
from stratagem.values.variable import Variable

__all__ = ["CallInputs"]

_STATIC = 0
_ARRAY = 1
_PER_REPLICA = 2


@dataclass(slots=True)
class CallInputs:
    """The arguments of one call, taken apart.

    Attributes:
        arrays: The arrays that go into the program.
        key: Equal for calls that can use the same program.
        traced: Whether an argument is a tracer of an outer JAX transformation.
        ragged: Whether replicas' arrays differ in shape, so that no program can take them.
    """

    arrays: list[Any]
    key: tuple[Any, ...]
    traced: bool
    ragged: bool
    _structure: Any
    _kinds: list[tuple[Any, ...]]
    _static: list[Any]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallInputs:
        """Takes the arguments of a call apart."""
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=is_value_leaf)
        arrays: list[Any] = []
        kinds: list[tuple[Any, ...]] = []
        static: list[Any] = []
        traced = ragged = False
        for leaf in leaves:
            if isinstance(leaf, jax.Array):
                traced = traced or is_tracer(leaf)
                kinds.append((_ARRAY, leaf.shape, leaf.dtype, leaf.weak_type))
                arrays.append(leaf)
            elif isinstance(leaf, PerReplica):
                group = leaf._group
                array = leaf.global_array(group) if group is not None else None
                if array is None:
                    ragged = True
                    continue
                traced = traced or is_tracer(array)
                kinds.append((_PER_REPLICA, array.shape, array.dtype, group, leaf.scalar))
                arrays.append(array)
            elif isinstance(leaf, (np.ndarray, np.generic, Mirrored)):
                leaf = array_of(leaf)
                traced = traced or is_tracer(leaf)
                dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
                kinds.append((_ARRAY, leaf.shape, dtype, False))
                arrays.append(leaf)
            else:
                kinds.append((_STATIC, _static_key(leaf)))
                static.append(leaf)
        return cls(arrays, (structure, *kinds), traced, ragged, structure, kinds, static)

    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of the arrays."""
        return [
            jax.ShapeDtypeStruct(kind[1], kind[2], weak_type=kind[0] == _ARRAY and kind[3])
            for kind in self._kinds
            if kind[0] != _STATIC
        ]

    def groups(self) -> list[ReplicaGroup]:
        """Returns the replicas that per-replica arguments live on."""
        return [kind[3] for kind in self._kinds if kind[0] == _PER_REPLICA]

    def rebuild(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns positional and keyword arguments with other arrays in place of the call's."""
        remaining, static = iter(arrays), iter(self._static)
        leaves: list[Any] = []
        for kind in self._kinds:
            if kind[0] == _STATIC:
                leaves.append(next(static))
            elif kind[0] == _ARRAY:
                leaves.append(next(remaining))
            else:
                leaves.append(PerReplica.from_global(kind[3], next(remaining), scalar=kind[4]))
        args, kwargs = jax.tree.unflatten(self._structure, leaves)
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
