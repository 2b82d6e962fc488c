"""``StrategyExtended``: the components of a strategy, for library code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate

import jax
import jax.numpy as jnp

from stratagem._src.collectives.all_gather import first_replica, gather
from stratagem._src.collectives.cross_device_ops import CrossDeviceOps
from stratagem._src.collectives.destinations import placed_on
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import UnsupportedError, VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.torch_tensors import array_of_tensor, is_tensor
from stratagem._src.core.types import ArrayLike, DTypeLike, Initializer, Leaf, PyTree, ShapeLike
from stratagem._src.current_strategy import context
from stratagem._src.execution.replicas.single import reduce_single
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.reducible import (
    flatten_reducible,
    once_per_worker,
    only_value,
    own_value,
)
from stratagem._src.strategies.replica_dispatch import call_for_each_replica
from stratagem._src.strategies.update_context import call_in_each_replica
from stratagem._src.values.array_operators import operand_of
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.values.regroup import map_values
from stratagem._src.variables.as_per_replica import is_per_replica, per_replica_of
from stratagem._src.variables.declared_shape import check_shape
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.foreign_variables import variable_of
from stratagem._src.variables.fully_sharded import current_placement, placing
from stratagem._src.variables.laid_out_variable import current_layout_source, laid_out_like
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable, counts_once
from stratagem._src.variables.variable import Variable, is_own_variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from stratagem._src.strategies.base import Strategy

__all__ = ["StrategyExtended"]


class StrategyExtended:
    """The components of a strategy: its devices, its placement of variables and its reductions.

    Library code uses it as ``strategy.extended``. A custom strategy subclasses it and implements
    ``make_variable``.

    Args:
        container_strategy: The strategy that it belongs to.
        group: The replicas' devices.
        cross_device_ops: How values are reduced between them.
    """

    # Whether a value that is created for the replicas is a PerReplica even if there is only one replica.
    wraps_single_values = True

    def __init__(
        self, container_strategy: Strategy, group: ReplicaGroup, cross_device_ops: CrossDeviceOps
    ) -> None:
        self._strategy = container_strategy
        self._group = group
        self._cross_device_ops = cross_device_ops

    @property
    def replica_group(self) -> ReplicaGroup:
        """The replicas' devices."""
        return self._group

    @property
    def cross_device_ops(self) -> CrossDeviceOps:
        """How values are reduced between the replicas."""
        return self._cross_device_ops

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Full names of the devices that replicas of this process run on."""
        return self._group.local_device_names

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Full names of the devices of this process that hold variables."""
        return self._group.local_device_names

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether every replica's shapes must be equal: no, different shapes run eagerly."""
        return False

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process should write checkpoints: of synchronous workers, only the leader."""
        return self.worker_position().index == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this process should write summaries: of synchronous workers, only the leader."""
        return self.should_checkpoint

    # --- variables --------------------------------------------------------------------------------

    def make_variable(self, **options: PyTree) -> Variable:
        """Returns a new variable that is synchronized on write. To be implemented by subclasses.

        Args:
            **options: The arguments of ``Variable``.
        """
        raise NotImplementedError

    def check_rules(self) -> None:
        """Checks that every sharding rule matches a variable; a no-op for strategies without rules."""

    def check_can_shard_variables(self, what: str) -> None:
        """Checks that variables can be sharded over the replicas.

        Args:
            what: The feature that needs it, for messages.

        Raises:
            UnsupportedError: If not.
        """
        raise UnsupportedError(
            f"{what} shards variables that every replica would have a copy of, but "
            f"{type(self._strategy).__name__} stores variables elsewhere. Use a MirroredStrategy, "
            "MultiWorkerMirroredStrategy or TPUStrategy, or leave it out."
        )

    def check_equal_on_workers(self, variables: Sequence[Variable], what: str) -> None:
        """Checks that all workers have the same values of variables created outside of the scope.

        Args:
            variables: The variables. All workers pass the same ones at the same time.
            what: What updates them by what all workers computed, for messages.

        Raises:
            VariableError: If not. A no-op for strategies of one process.
        """

    def create_variable(
        self,
        initial_value: Initializer = None,
        trainable: bool | None = None,
        *,
        name: str | None = None,
        dtype: DTypeLike = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation | None = VariableAggregation.NONE,
        shape: ShapeLike = None,
    ) -> Variable:
        """Returns a new variable with this strategy's placement; ``Variable(...)`` calls it."""
        self._check_synchronization(VariableSynchronization(synchronization))
        if is_tensor(initial_value):
            initial_value = array_of_tensor(initial_value)
        if constraint is not None and not callable(constraint):
            raise VariableError(f"constraint must be a function or None, got {constraint!r}.")
        options = {
            "trainable": trainable,
            "name": name,
            "dtype": dtype,
            "synchronization": VariableSynchronization(synchronization),
            "aggregation": VariableAggregation(aggregation or VariableAggregation.NONE),
        }

        # Read the thread-local blocks here: `make` may run in another thread than the replica's.
        placement, once, source = current_placement(), counts_once(), current_layout_source()
        if placement is not None:
            self.check_can_shard_variables(repr(placement))

        def make(value: ArrayLike) -> Variable:
            if options["synchronization"] is VariableSynchronization.ON_READ:
                made = self._make_sync_on_read(initial_value=value, counts_once=once, **options)
            else:
                # `placement` and `source` are the replica's thread's.
                with placing(placement or current_placement()), laid_out_like(source):
                    made = self.make_variable(initial_value=value, **options)
            check_shape(made, shape)
            made.keep_constraint(constraint)
            return made

        replica = context.get_replica_context()
        if replica is None or self._group.size == 1:
            return make(initial_value)
        if callable(initial_value) and not is_own_variable(initial_value):
            initial_value = initial_value()
        value = jnp.asarray(operand_of(initial_value), dtype)
        # The label has no name: each replica may have generated its own. The first replica's is used.
        created: Variable = replica.merge_per_replica(
            "creation of a variable",
            lambda _, values: make(self.first_replica(values)),
            value,
        )
        return created

    def _check_synchronization(self, synchronization: VariableSynchronization) -> None:
        if synchronization is VariableSynchronization.NONE:
            raise VariableError(
                "VariableSynchronization.NONE is not supported by any strategy. Use ON_WRITE (the "
                "default) or ON_READ."
            )

    def _make_sync_on_read(self, *, counts_once: bool, **options: PyTree) -> Variable:
        return SyncOnReadVariable(self._strategy, counts_once=counts_once, **options)

    def variable_created_in_scope(self, v: Variable) -> bool:
        """Returns whether ``v`` was created in this strategy's scope."""
        v = variable_of(v)
        return isinstance(v, DistributedVariable) and v.strategy is self._strategy

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Iterator[None]:
        """Creates the variables of the block on the devices of ``colocate_with_variable``.

        Raises:
            ValueError: If the variable belongs to another strategy.
        """
        if not self.variable_created_in_scope(colocate_with_variable):
            raise ValueError(
                "colocate_vars_with() needs a variable created in the scope of the same strategy, got "
                f"{colocate_with_variable!r}."
            )
        with self._strategy.scope():
            yield

    def value_container(self, value: PyTree) -> Any:
        """Returns the distributed value that ``value`` belongs to: itself."""
        return value

    # --- reductions -------------------------------------------------------------------------------

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: PyTree,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Combines a per-replica value and puts the result on the devices of ``destinations``.

        Args:
            reduce_op: How to combine.
            value: A per-replica value, or a structure of them.
            destinations: A variable, a distributed value, an array, or the name of a device.
            options: Packing.

        Returns:
            ``Mirrored`` values; arrays if ``destinations`` is one device, or is on one.
        """
        return self.batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def _replica_ctx_all_reduce(
        self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """All-reduces in replica context: a private name of TensorFlow's that its model garden uses."""
        replica: Any = context.get_replica_context()
        return replica.all_reduce(reduce_op, value, options)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Like ``reduce_to`` for several values, in bucketed collectives."""
        op = ReduceOp(reduce_op)
        context.require_cross_replica(self._strategy, "extended.reduce_to")
        leaves: list[Any] = []
        structures = []
        for value, _ in value_destination_pairs:
            flat, structure = flatten_reducible(value)
            structures.append((structure, len(flat)))
            leaves.extend(flat)
        reduced = iter(self.reduce_values(op, leaves, options))
        results = []
        for (structure, count), (_, destinations) in zip(
            structures, value_destination_pairs, strict=True
        ):
            placed = [placed_on(destinations, next(reduced), self._group) for _ in range(count)]
            results.append(jax.tree.unflatten(structure, placed))
        return results

    def reduce_values(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        """Returns each per-replica value combined over the replicas, as one array."""
        results: list[Any] = [None] * len(values)
        distributed: list[int] = []
        for position, value in enumerate(values):
            value = per_replica_of(value)
            if self._group.size == 1:
                results[position] = reduce_single(op, only_value(value, self._group))
            elif is_per_replica(value):
                distributed.append(position)
            elif self._group.spans_processes:
                values = [
                    *values[:position],
                    once_per_worker(value, self._group, op),
                    *values[position + 1 :],
                ]
                distributed.append(position)
            elif op is ReduceOp.SUM:
                raise ValueError(
                    "SUM needs a value for each replica (a PerReplica, as strategy.run() returns), got "
                    f"{value!r}, which is the same for all {self._group.size} replicas. Multiply it, or "
                    "use MEAN."
                )
            else:
                results[position] = reduce_single(op, value)
        pairs = [
            (own_value(per_replica_of(values[position]), self._group), self._group)
            for position in distributed
        ]
        if pairs:
            reduced = self._cross_device_ops.reduce_over(self._group, op, pairs, options)
            for position, result in zip(distributed, reduced, strict=True):
                results[position] = map_values(self._group.local_view, result)
        return results

    @property
    def gradient_options(self) -> CommunicationOptions | None:
        """Communication options of gradients, and the default of ``ReplicaContext.all_reduce``."""
        return None

    def worker_position(self) -> WorkerPosition:
        """Returns this process's position among the workers that read the same input: the only one."""
        return WorkerPosition(num_replicas=self._group.size)

    def leader_value(self, value: ArrayLike, name: str) -> Any:
        """Returns the leader's value; here, this process is the leader."""
        return value

    @property
    def expects_values(self) -> bool:
        """Whether another value replaces the initial value of the next variable: never."""
        return False

    def expected_value(self, value: ArrayLike, name: str) -> Any | None:
        """Returns the value that replaces a variable's initial value; here, ``None``."""
        return None

    def note_created(self, variable: DistributedVariable, first: ArrayLike) -> None:
        """Records that a variable has its initial value; a no-op here."""

    def reduce_value(self, op: ReduceOp, value: ArrayLike) -> Any:
        """Returns one per-replica value combined over the replicas."""
        return self.reduce_values(op, [value])[0]

    def first_replica(self, value: PyTree) -> Any:
        """Returns the first replica's components of a structure of per-replica values."""

        def first(leaf: Leaf) -> Any:
            return first_replica(leaf, self._group) if isinstance(leaf, PerReplica) else leaf

        return map_values(first, value)

    def gather_value(self, value: ArrayLike, axis: int) -> Any:
        """Returns the replicas' arrays concatenated along ``axis``."""
        value = per_replica_of(value)
        if self._group.size == 1:
            return only_value(value, self._group)
        if not is_per_replica(value):
            return value
        return self._group.local_view(gather(own_value(value, self._group), axis, self._group))

    # --- running ----------------------------------------------------------------------------------

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs ``fn`` in every replica; ``Strategy.run`` calls it."""
        return call_for_each_replica(self._strategy, self._group, fn, args, dict(kwargs or {}))

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Calls ``fn(var, *args, **kwargs)`` where the variable is stored, to update it.

        Call it in cross-replica context, usually from a function given to ``merge_call``, with values
        from ``reduce_to``; or in every replica, which synchronize to run it once. In that case the
        arguments must be the same in all replicas: the first replica's are used.

        Args:
            var: A variable.
            fn: Updates it. It gets the arrays of ``Mirrored`` arguments.
            args: Positional arguments.
            kwargs: Keyword arguments.
            group: Whether to return one merged result; else a list with one result for each copy.

        Raises:
            VariableError: If an argument differs between replicas but the variable must not.
        """
        call = (tuple(args), dict(kwargs or {}))
        frame = context.current_frame()
        if frame.replica_context is not None and frame.strategy is self._strategy:
            return frame.replica_context.merge_call(
                lambda _, *args, **kwargs: self._update_merged(var, fn, args, kwargs, group), *call
            )
        context.require_cross_replica(self._strategy, "extended.update")
        with self._strategy.scope():
            result = self.update_where_it_lives(var, fn, *call)
        return result if group else self._strategy.experimental_local_results(result)

    def _update_merged(
        self,
        var: Variable,
        fn: Callable[Concatenate[Variable, ...], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        """Updates a variable with the merged arguments of all replicas."""
        if not isinstance(var, SyncOnReadVariable):
            args, kwargs = self.first_replica((args, kwargs))
        result = self.update_where_it_lives(var, fn, args, kwargs)
        return result if group else self._strategy.experimental_local_results(result)

    def update_where_it_lives(
        self,
        var: Variable,
        fn: Callable[Concatenate[Variable, ...], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls ``fn(var, *args, **kwargs)``, in cross-replica context."""
        if isinstance(var, SyncOnReadVariable) and self._group.size > 1:
            return call_in_each_replica(self._strategy, self._group, fn, var, args, kwargs)
        positional, keywords = map_values(
            lambda leaf: self._update_argument(var, leaf), (args, kwargs)
        )
        return fn(var, *positional, **keywords)

    def _update_argument(self, var: Variable, leaf: Leaf) -> Any:
        if isinstance(leaf, PerReplica) and self._group.size > 1:
            raise VariableError(
                f"extended.update() of {var.name!r} got a PerReplica argument, with which its copies "
                "would diverge. Reduce it first with extended.reduce_to(...)."
            )
        return only_value(leaf, self._group) if isinstance(leaf, (PerReplica, Mirrored)) else leaf
