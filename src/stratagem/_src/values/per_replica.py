"""``PerReplica``: a value that differs between replicas."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import ContextError, NotAnArrayError
from stratagem._src.core.missing_names import missing_method
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.tracing import is_tracer, under_jit
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.distributed_values import DistributedValues, describe

__all__ = ["PerReplica", "SpmdPerReplica", "check_size"]

_NOT_AN_ARRAY = (
    "A PerReplica holds one value for each replica and cannot be used as one array. "
    "Combine it with strategy.reduce(...) or strategy.gather(...), take one component with "
    "strategy.experimental_local_results(value)[i], or pass it to strategy.run(fn, args=...)."
)
_ATTRIBUTES_OF_ARRAYS = frozenset(
    (
        "astype",
        "dtype",
        "item",
        "mean",
        "ndim",
        "numpy",
        "reshape",
        "shape",
        "size",
        "sum",
        "tolist",
    )
)


class PerReplica(DistributedValues):
    """One value for each replica, not kept in sync.

    Arrays of equal shape are kept as one global array that goes in and out of compiled steps without
    a copy; anything else as a tuple.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> ids = strategy.run(lambda: sg.distribute.get_replica_context().replica_id_in_sync_group)
    >>> ids
    PerReplica:{
      0: Array(0, dtype=int32),
      1: Array(1, dtype=int32)
    }
    """

    __slots__ = ("_array", "_group", "_joined", "_scalar", "_uneven", "_values")

    def __init__(
        self, values: Sequence[Any], group: ReplicaGroup | None = None, *, uneven: bool = False
    ) -> None:
        self._values: tuple[Any, ...] | None = tuple(values)
        self._group = group or _group_of(self._values)
        self._array: Any = None
        # What a program takes: the same, or the components joined when one takes them first.
        self._joined: Any = None
        # Whether the shapes are known to differ from those in another process.
        self._uneven = uneven
        self._scalar = bool(self._values) and np.ndim(self._values[0]) == 0

    @classmethod
    def from_global(cls, group: ReplicaGroup, array: Any, *, scalar: bool) -> PerReplica:
        """Returns the value whose components are the blocks of a global array.

        Args:
            group: The replicas.
            array: Array sharded on axis 0 over the replicas.
            scalar: Whether each block of one element stands for a scalar.
        """
        self = cls((), group)
        self._values = None
        self._array = self._joined = array
        self._scalar = scalar
        return self

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in the order of the replicas; with several processes, of the local ones."""
        if self._values is None:
            assert self._group is not None
            if is_tracer(self._array):
                _refuse_components(self._group)
                blocks = self._array.reshape((self._group.size, *self.local_shape))
                return tuple(blocks[i] for i in range(self._group.size))
            group = self._group
            self._values = evaluate_now(lambda: group.split(self._array, self._scalar))
        return self._values

    @property
    def staged(self) -> bool:
        """Whether what is done with the value becomes part of a program instead of happening now."""
        if is_tracer(self._array):
            return True
        return under_jit() or any(is_tracer(value) for value in self._values or ())

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one component, where all have the same."""
        if self._array is None:
            assert self._values is not None
            return np.shape(self._values[0])
        assert self._group is not None
        return self._group.local_shape(self._array.shape, self._scalar)

    @property
    def scalar(self) -> bool:
        """Whether the components are scalars."""
        return self._scalar

    @property
    def kept_global(self) -> ReplicaGroup | None:
        """The replicas, if the value is kept as one global array."""
        return self._group if self._array is not None else None

    def global_array(self, group: ReplicaGroup) -> Any | None:
        """Returns the components as one array over ``group``; ``None`` if they differ in shape.

        Components that are not arrays also give ``None``.

        Raises:
            ValueError: If there is not one component for each replica.
        """
        check_size(self, group)
        if self._array is not None:
            return self._array
        assert self._values is not None
        if self._uneven or not _stackable(self._values):
            return None
        if any(is_tracer(value) for value in self._values):
            return jnp.stack(self._values) if self._scalar else jnp.concatenate(self._values)
        if self._joined is None:
            values = self._values
            self._joined = evaluate_now(lambda: group.join(values))
        return self._joined

    def __copy__(self) -> PerReplica:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PerReplica:
        if self._array is not None or not self._values or type(self) is not PerReplica:
            return self  # arrays cannot be changed
        parts = [
            value if isinstance(value, jax.Array) else copy.deepcopy(value, memo)
            for value in self._values
        ]
        return PerReplica(parts, self._group, uneven=self._uneven)

    def __repr__(self) -> str:
        if is_tracer(self._array):
            return f"PerReplica:{{{self._array!r}}}"
        return describe("PerReplica", [repr(value) for value in self.values])

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotAnArrayError(_NOT_AN_ARRAY)

    if not TYPE_CHECKING:  # a type checker that sees it believes in every name

        def __getattr__(self, name):
            error = missing_method(self, name)
            if name in _ATTRIBUTES_OF_ARRAYS:  # still an AttributeError, for hasattr
                error.args = (f"{error}. {_NOT_AN_ARRAY}",)
            raise error

    def __hash__(self) -> int:
        return id(self)


# Not written in the class, so that type checkers refuse them too.
for _operator in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "matmul", "rmatmul", "pow", "rpow"),
    *("truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "neg", "pos", "abs"),
    *("and", "rand", "or", "ror", "xor", "rxor", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
    *("bool", "int", "float", "index", "complex", "len", "iter", "getitem", "array", "jax_array"),
):
    setattr(PerReplica, f"__{_operator}__", PerReplica._refuse)


class SpmdPerReplica(PerReplica):
    """One replica's component, seen from inside the single program that all replicas run.

    It appears in ``merge_call`` inside a compiled step. ``values`` gathers the others' components.
    """

    __slots__ = ("local",)

    def __init__(self, group: ReplicaGroup, local: Any) -> None:
        super().__init__((), group)
        self.local = local

    @property
    def values(self) -> tuple[Any, ...]:
        """Every replica's component, gathered into each replica."""
        assert self._group is not None
        _refuse_components(self._group)
        gathered = jax.lax.all_gather(self.local, REPLICA_AXIS)
        return tuple(gathered[i] for i in range(self._group.size))

    def __repr__(self) -> str:
        return f"PerReplica:{{{self.local!r}}}"


def _refuse_components(group: ReplicaGroup) -> None:
    """Raises where the components would make each process compile a program of its own."""
    if group.spans_processes:
        raise ContextError(
            "In a compiled function of several processes the components of a PerReplica cannot be taken "
            "apart, because every process must run the same program. Combine them with "
            "strategy.reduce(...) or strategy.gather(...), or return the value and take it apart "
            "outside."
        )


def check_size(value: PerReplica, group: ReplicaGroup) -> None:
    """Checks that a value has one component for each replica of ``group``.

    Raises:
        ValueError: If not.
    """
    if value._group is group:
        return
    count = len(value.values) if value._array is None else value._group and value._group.local_size
    if count != group.local_size or value._array is not None:
        raise ValueError(
            f"A PerReplica value must have a component for each of the {group.local_size} replicas on "
            f"{', '.join(group.local_device_names)}, got {count} of "
            f"{value._group or 'another strategy'}. Use the value with the strategy it came from."
        )


def _group_of(values: tuple[Any, ...]) -> ReplicaGroup | None:
    """Returns the replicas of components that lie on one device each."""
    devices: list[jax.Device] = []
    for value in values:
        if not isinstance(value, jax.Array) or is_tracer(value) or len(value.devices()) != 1:
            return None
        devices.extend(value.devices())
    return ReplicaGroup.of(devices) if devices and len(set(devices)) == len(devices) else None


def _stackable(values: Sequence[Any]) -> bool:
    first = values[0]
    if not all(isinstance(v, (jax.Array, np.ndarray, np.generic)) for v in values):
        return False
    if is_host_only(first.dtype):
        return False
    return all(v.shape == first.shape and v.dtype == first.dtype for v in values)


# To jax.tree.map and the like a value is its components, whichever way it is kept.
jax.tree_util.register_pytree_node(
    PerReplica,
    lambda value: (value.values, (value._group, value._uneven)),
    lambda kept, children: PerReplica(children, kept[0], uneven=kept[1]),
)
jax.tree_util.register_pytree_node(
    SpmdPerReplica,
    lambda value: ((value.local,), value._group),
    lambda group, children: SpmdPerReplica(group, children[0]),
)
