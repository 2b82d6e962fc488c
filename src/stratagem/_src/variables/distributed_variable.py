"""``DistributedVariable`` and ``AggregatingVariable``: base classes of strategies' variables."""

from __future__ import annotations

import itertools
from typing import Any, Self

import jax.numpy as jnp

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError, ShippingError, UnsupportedError, VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import ReplicaContextProtocol, StrategyProtocol
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.process.signal_handlers import in_signal_handler
from stratagem._src.values.distributed_values import DistributedValues, describe
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import frames, updates
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["AggregatingVariable", "DistributedVariable"]

_creation_numbers = itertools.count()


class DistributedVariable(Variable, DistributedValues):
    """A variable that belongs to a strategy.

    Attributes:
        creation_number: Increases with each variable that this process creates.
    """

    __slots__ = ("_strategy", "creation_number")

    def __init__(self, strategy: StrategyProtocol, *args: PyTree, **kwargs: PyTree) -> None:
        self._strategy = strategy
        self.creation_number: int = next(_creation_numbers)
        super().__init__(*args, **kwargs)

    @property
    def expects_value(self) -> bool:
        """Whether other workers have created it already, so that their value replaces the initial value."""
        return self._strategy.extended.expects_values

    def __reduce__(self) -> Any:
        raise ShippingError(
            f"Variable {self.name!r} cannot be pickled: it is on the devices of this process, in the scope "
            f"of {self._strategy!r}. Save it with stratagem.train.Checkpoint, or send v.numpy() and create "
            "a variable from it there; variables of a ParameterServerStrategy can be sent."
        )

    @property
    def strategy(self) -> StrategyProtocol:
        """The strategy in whose scope the variable was created."""
        return self._strategy

    @property
    def group(self) -> ReplicaGroup:
        """The devices of the strategy's replicas."""
        return self._strategy.replica_group

    @property
    def distribute_strategy(self) -> StrategyProtocol:
        """Same as ``strategy``, by TensorFlow's name."""
        return self._strategy

    def check_own_replica(self) -> ReplicaContextProtocol | None:
        """Returns the replica context, or ``None``; raises in a replica of another strategy.

        Raises:
            ContextError: Inside a replica of another strategy.
        """
        frame = context.current_frame()
        replica = frame.replica_context
        if replica is None or frame.strategy is self._strategy:
            return replica
        if not context.has_strategy():
            return None
        raise ContextError(
            f"Variable {self.name!r} belongs to {self._strategy!r} and cannot be used in a replica "
            f"of {replica.strategy!r}. Create it in that strategy's scope."
        )

    def check_own_context(self) -> ReplicaContextProtocol | None:
        """Returns the replica context, or ``None``; raises in the scope of another strategy.

        Raises:
            ContextError: Inside the scope or a replica of another strategy.
        """
        frame = context.current_frame()
        if frame.strategy is self._strategy:
            return frame.replica_context
        if not context.has_strategy():
            return None
        raise ContextError(
            f"Variable {self.name!r} belongs to {self._strategy!r} and cannot be updated in the scope "
            f"or in a replica of {frame.strategy!r}. Leave that scope first."
        )

    def _check_aggregation_of_dtype(self) -> None:
        mean = self._aggregation is VariableAggregation.MEAN
        if mean and not jnp.issubdtype(self._dtype, jnp.inexact):
            raise VariableError(
                f"Aggregation MEAN needs a floating point variable, got {self._dtype.name} for "
                f"variable {self._name!r}. Use a float dtype, or aggregation SUM."
            )

    def _current_value(self) -> Any:
        self.check_own_replica()
        return super()._current_value()

    def _check_readable_now(self) -> None:
        """Raises if reading the stored copies would compile them into the user's own program."""
        if under_jit() and not in_signal_handler():
            super()._current_value()

    def _describe_components(self, kind: str) -> str:
        if frames.current_frame() is not None or self._array is None or self.group.size == 1:
            return self._describe(self._name, self._eager_value)
        first, count = self.group.first_local, self.group.local_size
        names = [
            f"{self._name}/replica_{i}" if i else self._name for i in range(first, first + count)
        ]
        rows = [
            self._describe(name, lambda copy=copy: copy)  # type: ignore[misc]
            for name, copy in zip(names, self.values, strict=True)
        ]
        return describe(kind, rows)


class AggregatingVariable(DistributedVariable):
    """A variable with one value for all replicas, which aggregates the replicas' updates."""

    __slots__ = ()

    def _update(self, update: Update, operand: ArrayLike) -> Self:
        replica = self.check_own_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            self._update_from_replica(replica, update, operand)
        elif isinstance(operand, PerReplica):
            self._check_aggregation(update, "with a PerReplica value")
            self.apply(update, self.check_operand(update, self._aggregate(operand)))
        else:
            self.apply(update, self.check_operand(update, operand))
        return self

    def _update_from_replica(
        self, replica: ReplicaContextProtocol, update: Update, operand: ArrayLike
    ) -> None:
        self._check_aggregation(update, "in replica context")
        reduce_op = self._aggregation.reduce_op
        if isinstance(operand, (int, float, complex)) and reduce_op is ReduceOp.SUM:
            raise VariableError(
                f"{update.name}() of {self.name!r} (aggregation SUM) got the Python number "
                f"{operand!r} in replica context, which is ambiguous: add it once, or once per replica? "
                "Give an array, for example jnp.asarray(x), to add it for each replica, or use "
                "aggregation MEAN or ONLY_FIRST_REPLICA to apply it once."
            )
        checked = self.check_operand(update, operand)
        frame = frames.current_frame()
        if frame is None or frame.spmd:
            replica.merge_per_replica(
                f"{update.name} of {self.name!r}",
                lambda _, value: self.apply(update, self._aggregate(value)),
                checked,
            )
            return
        # Inside value_and_grad of an eager replica. Only this thread traces the value, so the replicas
        # cannot merge it: aggregate it with collectives that are traceable.
        frame.check_writable(self)
        if reduce_op is None:
            aggregated = replica.first_replica(checked)
        else:
            # Default options instead of the strategy's: no gradient compression, which would round the
            # variable's value.
            aggregated = replica.all_reduce(reduce_op, checked, CommunicationOptions())
        self._update_traced(frame, update, aggregated)

    def _update_traced(self, frame: frames.StateFrame, update: Update, operand: ArrayLike) -> None:
        frame.write(self, update.apply(frame.read(self), operand))

    def commit(self, value: ArrayLike) -> None:
        """Assigns a value that is already aggregated and so the same in every replica."""
        replica = self.check_own_replica()
        if replica is None or replica.num_replicas_in_sync == 1:
            self.apply(updates.ASSIGN, value)
            return
        replica.merge_per_replica(
            f"assign of {self.name!r}",
            lambda strategy, values: self.apply(
                updates.ASSIGN, strategy.extended.first_replica(values)
            ),
            value,
        )

    def _check_aggregation(self, update: Update, where: str) -> None:
        if self._aggregation is VariableAggregation.NONE:
            raise VariableError(
                f"{update.name}() of {self.name!r} {where} needs an aggregation, because the replicas' "
                "values may differ. Create it with Variable(..., aggregation=VariableAggregation.SUM)"
                " (or MEAN, or ONLY_FIRST_REPLICA), or update it in cross-replica context."
            )
        self._check_reducible(update, where)

    def _check_reducible(self, update: Update, where: str) -> None:
        if not update.reducible and self._aggregation.reduce_op is not None:
            raise UnsupportedError(
                f"{update.name}() of {self.name!r} {where} cannot be aggregated by "
                f"{self._aggregation.name}. Use aggregation ONLY_FIRST_REPLICA."
            )

    def _aggregate(self, value: ArrayLike) -> Any:
        runtime = self._strategy.extended
        if self._aggregation.reduce_op is None:
            return runtime.first_replica(value)
        return runtime.reduce_value(self._aggregation.reduce_op, value)
