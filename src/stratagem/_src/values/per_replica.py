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
from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.device_arrays import uncommitted
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

    Arrays of equal shape are stored as one global array, which compiled steps take and return without a
    copy; anything else is stored as a tuple.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> ids = strategy.run(lambda: sg.distribute.get_replica_context().replica_id_in_sync_group)
    >>> ids
    PerReplica:{
      0: Array(0, dtype=int32),
      1: Array(1, dtype=int32)
    }
    """

    __slots__ = ("_array", "_global", "_group", "_scalar", "_uneven", "_values")

    def __init__(
        self, values: Sequence[Any], group: ReplicaGroup | None = None, *, uneven: bool = False
    ) -> None:
        self._values: tuple[Any, ...] | None = tuple(values)
        self._group = group or _group_of(self._values)
        self._array: Any = None
        # The array that programs take: `_array`, or the components concatenated when a program first needs
        # them.
        self._global: Any = None
        # Whether the shapes are known to differ from those of another process.
        self._uneven = uneven
        self._scalar = bool(self._values) and np.ndim(self._values[0]) == 0

    @classmethod
    def from_global(cls, group: ReplicaGroup, array: ArrayLike, *, scalar: bool) -> PerReplica:
        """Returns the value whose components are the blocks of a global array.

        Args:
            group: The replicas.
            array: Array sharded on axis 0 over the replicas.
            scalar: Whether each block of one element represents a scalar.
        """
        self = cls((), group)
        self._values = None
        self._array = self._global = array
        self._scalar = scalar
        return self

    @property
    def values(self) -> tuple[Any, ...]:
        """The components of this process, in replica order."""
        if self._values is None:
            assert self._group is not None
            if is_tracer(self._array):
                _refuse_components(self._group)
                blocks = self._array.reshape((self._group.size, *self.local_shape))
                return tuple(blocks[i] for i in range(self._group.size))
            group = self._group
            blocks = evaluate_now(lambda: group.split(self._array, self._scalar))
            # Like those of eager replicas: tf.concat(per_replica.values, 0) may combine them.
            self._values = tuple(map(uncommitted, blocks))
        return self._values

    @property
    def staged(self) -> bool:
        """Whether operations on the value are traced into a program instead of executed now."""
        if is_tracer(self._array):
            return True
        return under_jit() or any(is_tracer(value) for value in self._values or ())

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one component, if all have the same shape."""
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
    def global_group(self) -> ReplicaGroup | None:
        """The replicas, if the value is stored as one global array; else ``None``."""
        return self._group if self._array is not None else None

    def global_array(self, group: ReplicaGroup) -> Any | None:
        """Returns the components as one array over ``group``; ``None`` if they differ in shape.

        Returns ``None`` too if the components are not arrays.

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
        if self._global is None:
            values = self._values
            self._global = evaluate_now(lambda: group.assemble(values))
        return self._global

    def __copy__(self) -> PerReplica:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PerReplica:
        if self._array is not None or not self._values or type(self) is not PerReplica:
            return self  # JAX arrays are immutable
        components = [
            value if isinstance(value, jax.Array) else copy.deepcopy(value, memo)
            for value in self._values
        ]
        return PerReplica(components, self._group, uneven=self._uneven)

    def __repr__(self) -> str:
        if is_tracer(self._array):
            return f"PerReplica:{{{self._array!r}}}"
        return describe("PerReplica", [repr(value) for value in self.values])

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotAnArrayError(_NOT_AN_ARRAY)

    def __format__(self, spec: str) -> str:
        return self._refuse() if spec else str(self)

    if not TYPE_CHECKING:  # with __getattr__ a type checker would accept every name

        def __getattr__(self, name):
            error = missing_method(self, name)
            if name in _ATTRIBUTES_OF_ARRAYS:  # still an AttributeError, for hasattr
                error.args = (f"{error}. {_NOT_AN_ARRAY}",)
            raise error

    def __hash__(self) -> int:
        return id(self)


# Set outside of the class, so that type checkers reject these operators too.
for _operator in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "matmul", "rmatmul", "pow", "rpow"),
    *("truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "neg", "pos", "abs"),
    *("and", "rand", "or", "ror", "xor", "rxor", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
    *("bool", "int", "float", "index", "complex", "len", "iter", "getitem", "array", "jax_array"),
):
    setattr(PerReplica, f"__{_operator}__", PerReplica._refuse)


class SpmdPerReplica(PerReplica):
    """A per-replica value inside the SPMD program that all replicas run: it holds one replica's component.

    It appears in ``merge_call`` inside a compiled step. ``values`` all-gathers the other components.
    """

    __slots__ = ("local",)

    def __init__(self, group: ReplicaGroup, local: Tensor) -> None:
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
    """Raises if access to components would make each process compile a different program."""
    if group.spans_processes:
        raise ContextError(
            "In a compiled function of several processes the components of a PerReplica cannot be accessed "
            "one by one, because every process must run the same program. Combine them with "
            "strategy.reduce(...) or strategy.gather(...), or return the value and access its components "
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
            f"{value._group or 'another strategy'}. Use the value with the strategy that created it."
        )


def _group_of(values: tuple[Any, ...]) -> ReplicaGroup | None:
    """Returns the replicas of components that are on one device each, if they are."""
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


# As a pytree a value consists of its components, however it is stored.
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
