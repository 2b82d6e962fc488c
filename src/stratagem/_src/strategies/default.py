"""``DefaultStrategy``: the strategy outside of any scope, with one replica and plain variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from stratagem._src.collectives.nccl_all_reduce import NcclAllReduce
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.execution.dataset_loops.step_cache import compiled_step
from stratagem._src.execution.replicas.single import SingleChannel
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.mesh.backend_start import prepare_backend
from stratagem._src.mesh.devices import resolve_devices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.strategies.replica_context import ReplicaContext
from stratagem._src.values.host_arrays import own_host_array
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.values.regroup import map_values
from stratagem._src.variables import frames, transactions
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.foreign_variables import variable_of
from stratagem._src.variables.variable import Variable, create_plain_variable
from stratagem._src.variables.variable_options import VariableSynchronization

__all__ = ["DefaultStrategy", "default_frame"]


class DefaultStrategy(Strategy):
    """One replica on JAX's default device, with plain variables.

    Code written for a strategy also runs without one: then ``get_strategy()`` returns this.
    """

    def __init__(self) -> None:
        super().__init__(_DefaultExtended(self))

    @property
    def num_replicas_in_sync(self) -> int:
        """One."""
        return 1

    def scope(self) -> context.Scope[Self]:
        """Returns a scope without effect: this strategy is current outside of any scope.

        Raises:
            ContextError: On entering, inside another strategy's scope.
        """
        return context.Scope(self, context.default_frame(), self._check_scope)

    def __repr__(self) -> str:
        return "<DefaultStrategy>"


class _DefaultExtended(StrategyExtended):
    wraps_single_values = False

    def __init__(self, strategy: DefaultStrategy) -> None:
        self._strategy = strategy
        self._cross_device_ops = NcclAllReduce()

    @property
    def _group(self) -> ReplicaGroup:  # type: ignore[override]
        # Lazy: creating the default strategy must not initialize the JAX backend.
        return ReplicaGroup.of(resolve_devices()[:1])

    def make_variable(self, **options: PyTree) -> Variable:
        prepare_backend()
        return create_plain_variable(**options)

    def check_can_shard_variables(self, what: str) -> None:
        """Accepts: with one replica a shard is the full value."""

    def variable_created_in_scope(self, v: Variable) -> bool:
        return not isinstance(variable_of(v), DistributedVariable)

    def _check_synchronization(self, synchronization: VariableSynchronization) -> None:
        """Accepts any: a plain variable has one value."""

    def _make_sync_on_read(self, *, counts_once: bool, **options: PyTree) -> Variable:
        return create_plain_variable(**options)

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        staged = frames.current_frame() is not None or under_jit()
        steps = None if staged else compiled_step(fn)
        if steps is not None:
            return steps.run(self._strategy, fn, tuple(args), dict(kwargs or {}))
        local_args, local_kwargs = map_values(_only_component, (tuple(args), dict(kwargs or {})))
        replica = ReplicaContext(self._strategy, SingleChannel(self._strategy))
        with context.enter(context.Frame(self._strategy, replica)):
            if frames.current_frame() is not None:
                return fn(*local_args, **local_kwargs)
            return transactions.atomically(lambda _: fn(*local_args, **local_kwargs))


def _only_component(leaf: Leaf) -> Any:
    if isinstance(leaf, PerReplica):
        if len(leaf.values) != 1:
            raise ValueError(
                f"A PerReplica value of {len(leaf.values)} replicas was passed to a strategy with one "
                "replica. Use it with the strategy that created it."
            )
        return leaf.values[0]
    return own_host_array(leaf)


def default_frame() -> context.Frame:
    """Returns the frame that is current outside of any scope."""
    strategy = DefaultStrategy()
    return context.Frame(strategy, ReplicaContext(strategy, SingleChannel(strategy)))
