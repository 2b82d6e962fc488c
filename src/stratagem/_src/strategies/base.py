"""``Strategy``: the base class of distribution strategies."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import ContextError
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.owned_memory import OwnedResults
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.input.input_options import InputOptions
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.mesh.device_memory import DeviceMemory
from stratagem._src.mesh.device_utilization import DeviceUtilization
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.deprecated_aliases import DeprecatedAliases
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.strategies.reduce_along import reduce_along
from stratagem._src.strategies.reducible import flatten_reducible
from stratagem._src.strategies.replica_context import ValueContext
from stratagem._src.strategies.run_options import RunOptions
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.telemetry.monitoring.monitored_task import report_if_monitored
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.values.regroup import map_values, select_replica
from stratagem._src.variables import frames
from stratagem._src.variables.as_per_replica import per_replica_of
from stratagem._src.variables.foreign_variables import is_variable, variable_of

if TYPE_CHECKING:
    from stratagem._src.cluster import ClusterResolver
    from stratagem._src.data.dataset import Dataset
    from stratagem._src.input.distributed_dataset import DistributedDataset
    from stratagem._src.input.input_context import InputContext

__all__ = ["Strategy"]

_DEVICE_MEMORY = DeviceMemory()
_DEVICE_UTILIZATION = DeviceUtilization()
_LIBRARY = __name__.partition(".")[0]
_numbers: dict[str, Iterator[int]] = {}


class Strategy(DeprecatedAliases):
    """Distributes state and computation over devices.

    Write a step for one replica, ``run`` it, and ``reduce`` its result. The strategy decides where replicas
    run and where variables are stored. ``extended`` has its components.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     v = sg.Variable(1.0)
    >>> @sg.function
    ... def step(x):
    ...     per_replica = strategy.run(lambda x: v * x, args=(x,))
    ...     return strategy.reduce("SUM", per_replica, axis=None)
    >>> x = strategy.experimental_distribute_values_from_function(
    ...     lambda ctx: ctx.replica_id_in_sync_group + 1.0)
    >>> float(step(x))
    3.0
    """

    def __init__(self, extended: StrategyExtended) -> None:
        self._extended = extended
        self._label = _new_label(type(self).__name__)
        report_if_monitored()
        observer = recorder()
        if observer is not None:
            observer.add_source("device_memory", _DEVICE_MEMORY.metrics)
            observer.add_source("devices", _DEVICE_UTILIZATION.metrics)

    @property
    def extended(self) -> StrategyExtended:
        """The components of the strategy, for library code."""
        return self._extended

    @property
    def replica_group(self) -> ReplicaGroup:
        """The replicas' devices."""
        return self._extended.replica_group

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas over which gradients are combined."""
        return self._extended.replica_group.size

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """The resolver that describes the cluster; ``None`` for strategies of one machine."""
        return None

    def scope(self) -> context.Scope[Self]:
        """Makes this strategy current: it places the variables that are created in the block.

        The returned context manager can be stored and entered several times.

        Raises:
            ContextError: On entering, inside another strategy's scope or inside a replica.
        """
        return context.Scope(self, context.Frame(self, None), self._check_scope)

    def _check_scope(self) -> None:
        frame = context.current_frame()
        if context.has_strategy():
            if frame.strategy is not self:
                raise ContextError(
                    f"The scope of {self!r} cannot be entered inside the scope of {frame.strategy!r}. "
                    "Leave that one first."
                )
            if frame.replica_context is not None:
                raise ContextError(
                    "scope() cannot be entered in replica context (inside the function given to "
                    "strategy.run()). Enter it outside of run()."
                )

    def __copy__(self) -> NoReturn:
        raise ContextError(
            f"{self!r} has components that refer to it, which a shallow copy would share. Use "
            "copy.deepcopy(strategy), or the strategy itself."
        )

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Calls ``fn`` in every replica and returns the merged results.

        Inside a ``function`` all replicas run as one compiled SPMD program. Otherwise, and if the replicas'
        arguments differ in shape, each replica runs eagerly in its own thread.

        Args:
            fn: The replica function; a ``function`` is compiled.
            args: Positional arguments. Each replica gets its own component of per-replica values and
                its own copy of arrays.
            kwargs: Keyword arguments, treated like ``args``.
            options: See ``RunOptions``.

        Returns:
            The structure that ``fn`` returns, with arrays as ``PerReplica`` values. Other objects that
            are the same in all replicas are not wrapped. With one replica nothing is wrapped.

        Raises:
            ContextError: In replica context or another strategy's scope.
        """
        context.require_cross_replica(self, "run")
        if not isinstance(args, (list, tuple)):
            raise ValueError(
                f"args must be a list or tuple, got {type(args).__name__}. For one argument write "
                "args=(x,)."
            )
        if options is not None:
            options.check((args, kwargs))
        call = self._extended.call_for_each_replica
        observer = recorder()
        if observer is not None and frames.current_frame() is None and not under_jit():
            call = observer.as_step(call, self.replica_group.replicas_by_device)
        return call(fn, args, kwargs)

    def reduce(
        self, reduce_op: ReduceOp | str, value: PyTree, axis: int | Sequence[int] | None = None
    ) -> Any:
        """Combines a per-replica value over the replicas, and along ``axis`` if given.

        Args:
            reduce_op: ``SUM``, ``MEAN``, ``MIN`` or ``MAX``. A ``MEAN`` along an axis divides by the
                true number of elements, even if replicas have different numbers.
            value: A per-replica value, or a structure of them.
            axis: Dimension of each replica's array to combine too, or several; ``None`` combines over
                the replicas only.

        Returns:
            One array in place of each per-replica value.

        Raises:
            ValueError: If a value to sum is not per-replica, or shapes do not fit.

        Differs from tf.distribute: ``MIN`` and ``MAX`` are supported, and structures with an axis.
        """
        context.require_cross_replica(self, "reduce")
        op = ReduceOp(reduce_op)
        leaves, structure = flatten_reducible(value)
        if axis is None:
            return jax.tree.unflatten(structure, self._extended.reduce_values(op, leaves))
        axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
        return jax.tree.unflatten(
            structure,
            [reduce_along(self._extended, op, per_replica_of(leaf), axes) for leaf in leaves],
        )

    def gather(self, value: PyTree, axis: int) -> Any:
        """Concatenates a per-replica value along ``axis``, in replica order.

        Args:
            value: A per-replica value, or a structure of them.
            axis: Dimension along which to concatenate; sizes may differ there, and only there.

        Raises:
            ShapeMismatchError: If other dimensions differ.
        """
        context.require_cross_replica(self, "gather")
        return map_values(lambda leaf: self._extended.gather_value(leaf, axis), value)

    def experimental_local_results(self, value: PyTree) -> tuple[Any, ...]:
        """Returns the components of a distributed value that this process holds.

        Any other value is returned as the only element.
        """
        if isinstance(value, (PerReplica, Mirrored)):
            return value.values
        if is_variable(value):
            value = variable_of(value)
            return getattr(value, "values", None) or (value,)
        leaves = structures.leaves_of(value, is_value_leaf)
        if not any(isinstance(leaf, (PerReplica, Mirrored)) for leaf in leaves):
            return (value,)
        return tuple(select_replica(index, value) for index in range(self.replica_group.local_size))

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Returns a per-replica value by calling ``value_fn`` once for each replica.

        Args:
            value_fn: Takes a ``ValueContext``; returns an array, number or structure of them.

        Returns:
            The structure, with ``PerReplica`` values of arrays. The default strategy and
            ``OneDeviceStrategy`` return the only replica's value unwrapped.

        >>> import stratagem as sg
        >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.experimental_distribute_values_from_function(
        ...     lambda ctx: ctx.replica_id_in_sync_group * 2.0)
        PerReplica:{
          0: Array(0., dtype=float32),
          1: Array(2., dtype=float32)
        }
        """
        context.require_cross_replica(self, "experimental_distribute_values_from_function")
        group = self.replica_group
        local = range(group.first_local, group.first_local + group.local_size)
        made = [
            # Take ownership before the next call, which may fill the same buffer.
            _owned_results.take(functools.partial(value_fn, ValueContext(index, group.size)))
            for index in local
        ]
        flattened = [structures.flatten(value) for value in made]
        structure: Any = flattened[0][1]
        for index, (_, other) in enumerate(flattened):
            if other != structure:
                raise ValueError(
                    "value_fn must return the same structure for each replica, got "
                    f"{structure} for replica 0 and {other} for replica {index}."
                )
        columns = [
            [_as_array(v, d) for v, d in zip(column, group.local_devices, strict=True)]
            for column in zip(*(leaves for leaves, _ in flattened), strict=True)
        ]
        if not self._extended.wraps_single_values:
            return jax.tree.unflatten(structure, [value for (value,) in columns])
        return jax.tree.unflatten(structure, [PerReplica(column, group) for column in columns])

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Returns a dataset that splits each batch of ``dataset`` over the replicas.

        Args:
            dataset: A ``Dataset`` batched by the global batch size; or a dataset of ``tf.data``, Grain
                or PyTorch, an iterable of batches, or an array as the only batch.
            options: See ``InputOptions``.

        >>> import stratagem as sg
        >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = sg.data.Dataset.range(10).batch(4)
        >>> for x in strategy.experimental_distribute_dataset(dataset):
        ...     print([v.tolist() for v in x.values])
        [[0, 1], [2, 3]]
        [[4, 5], [6, 7]]
        [[8], [9]]
        """
        context.require_cross_replica(self, "experimental_distribute_dataset")
        # Imported lazily, here and below: datasets would be half of the cost of `import stratagem`.
        from stratagem._src.input.distributed_dataset import distribute_dataset

        return distribute_dataset(
            dataset, self.replica_group, options, self._extended.worker_position()
        )

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Returns a dataset of the batches of ``dataset_fn``, which are not split further.

        Args:
            dataset_fn: Takes an ``InputContext`` and returns a dataset of per-replica batches, sharded
                for its worker. Called once for each worker, or for each replica.
            options: See ``InputOptions``.

        Differs from tf.distribute: batches at the end are never dropped; a replica without a batch gets an
        empty one.

        >>> import stratagem as sg
        >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def dataset_fn(context):
        ...     batch_size = context.get_per_replica_batch_size(4)
        ...     return sg.data.Dataset.range(8).batch(batch_size)
        >>> for x in strategy.distribute_datasets_from_function(dataset_fn):
        ...     print([v.tolist() for v in x.values])
        [[0, 1], [2, 3]]
        [[4, 5], [6, 7]]
        """
        context.require_cross_replica(self, "distribute_datasets_from_function")
        from stratagem._src.input.distributed_dataset import distribute_from_function

        return distribute_from_function(
            dataset_fn,
            self.replica_group,
            options,
            self._extended.worker_position(),
            self.num_replicas_in_sync,
        )

    def experimental_make_numpy_dataset(self, numpy_input: PyTree) -> Dataset:
        """Returns a dataset of the rows of NumPy arrays; lists of arrays are stacked."""
        from stratagem._src.data.dataset import Dataset

        return Dataset.from_tensor_slices(numpy_input)

    def __repr__(self) -> str:
        devices = ", ".join(self._extended.worker_devices)
        return f"<{type(self).__name__} {self._label} on {devices}>"


_owned_results = OwnedResults(structures.leaves_of, structures.map_structure)


def _as_array(value: ArrayLike, device: jax.Device) -> Any:
    if isinstance(value, jax.Array):
        return jax.device_put(value, device)
    if isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)):
        return jax.device_put(np.array(guard_int64(value), jnp.result_type(value)), device)
    return value


def _new_label(kind: str) -> str:
    """Returns a label for a strategy that is being created: its number and its creation site.

    The creation site is the innermost caller outside of this library. A notebook cell that runs again
    creates another strategy at the same site, so the label has a number too.
    """
    number = next(_numbers.setdefault(kind, itertools.count(1)))
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if _is_ours(frame.f_globals.get("__name__", "")):
        return str(number)
    return f"{number} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def _is_ours(module: object) -> bool:
    return str(module).partition(".")[0] == _LIBRARY
