"""State frames of replica functions: compiled with an outer function, or in a ``jax.jit`` of the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import jax

from stratagem._src.collectives.all_gather import gather_spmd
from stratagem._src.core.errors import ContextError, VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import PyTree, Tensor
from stratagem._src.execution.tracing_frame import TracingFrame
from stratagem._src.jaxpr.scaled_origin import find_origin
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.variables.frames import ReducedGradient, StateFrame
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = ["ReplicaFrame", "UserJitFrame"]


class ReplicaFrame(TracingFrame):
    """Frame of the SPMD program of all replicas; the traced values are those of one replica."""

    spmd = True

    def __init__(self, group: ReplicaGroup) -> None:
        super().__init__()
        self._group = group
        self._read_since_sync: set[int] = set()
        self._pending_updates: dict[int, tuple[Variable, list[tuple[Update, Any]]]] = {}
        # Each entry also keeps its gradient alive, so that its id stays unique.
        self._reduced_shards: dict[int, tuple[Any, Any]] = {}
        self._losses: dict[int, tuple[Any, Any]] = {}
        self._reduced: dict[int, tuple[Any, ReducedGradient]] = {}

    def close(self) -> None:
        """Drops the traced values."""
        super().close()
        self._reduced_shards = {}
        self._losses = {}
        self._reduced = {}

    def note_loss(self, loss: Tensor, gradients: Sequence[Any]) -> None:
        """Notes the loss of which ``gradients`` are this replica's gradients."""
        self._losses |= {id(gradient): (gradient, loss) for gradient in gradients}

    def loss_of(self, gradient: Tensor) -> Any | None:
        """Returns the loss that ``note_loss`` got for a gradient, if any."""
        return self._losses.get(id(gradient), (None, None))[1]

    def note_reduction(
        self, op: ReduceOp, values: Sequence[Any], results: Sequence[Tensor]
    ) -> None:
        """Notes an all-reduce, for ``reduced_gradient``, if its operands are gradients."""
        if op not in (ReduceOp.SUM, ReduceOp.MEAN) or not self._losses:
            return
        mean = (float(self._group.size),) if op is ReduceOp.MEAN else ()
        for value, result in zip(values, results, strict=True):
            found = find_origin(value, self.loss_of)
            if found is not None:
                loss, divisors = found
                self._reduced[id(result)] = (result, ReducedGradient(loss, divisors + mean))

    def reduced_gradient(self, gradient: Tensor) -> ReducedGradient | None:
        """Returns what ``note_reduction`` got for a gradient that was scaled, cast or clipped since."""

        def known(value: Tensor) -> ReducedGradient | None:
            return self._reduced.get(id(value), (None, None))[1]

        found = find_origin(gradient, known) if self._reduced else None
        if found is None:
            return None
        reduced, divisors = found
        return ReducedGradient(reduced.loss, reduced.divisors + divisors)

    def note_reduced_shard(self, gradient: Tensor, shard: Tensor) -> None:
        """Notes this replica's shard of a gradient that is summed over the replicas (reduce-scattered)."""
        self._reduced_shards[id(gradient)] = (gradient, shard)

    def reduced_shard(self, gradient: Tensor) -> Any | None:
        """Returns the shard that ``note_reduced_shard`` got for a gradient, if any."""
        return self._reduced_shards.get(id(gradient), (None, None))[1]

    def read(self, variable: Variable) -> Any:
        """Returns this replica's traced value."""
        if id(variable) in self._pending_updates:
            self._refuse_order(variable)
        self._read_since_sync.add(id(variable))
        return super().read(variable)

    def update_in_turn(self, variable: Variable, update: Update, operand: PyTree) -> None:
        """Notes the update; ``flush`` applies it for one replica after the other."""
        if id(variable) in self._read_since_sync:
            self._refuse_order(variable)
        self._pending_updates.setdefault(id(variable), (variable, []))[1].append((update, operand))

    def flush(self) -> None:
        """Applies the pending updates, replica by replica; called at every synchronization and at the end.

        Every replica gathers the operands of all replicas and applies them in the order of the replicas, so
        that all replicas compute the same new value.
        """
        self._read_since_sync.clear()
        pending, self._pending_updates = self._pending_updates, {}
        for variable, _ in pending.values():
            self.check_writable(variable)
        for variable, noted in pending.values():
            value = super().read(variable)
            gathered = [
                (update, jax.tree.map(lambda x: gather_spmd(x[None], 0), operand))
                for update, operand in noted
            ]
            # A variable outside of any strategy belongs to one process: only the replicas of that process
            # update it.
            index = jax.lax.axis_index(REPLICA_AXIS)
            first = index - index % self._group.local_size if self._group.spans_processes else 0
            for replica in range(self._group.local_size):
                for update, operands in gathered:
                    mine = jax.tree.map(lambda x, turn=first + replica: x[turn], operands)
                    value = update.apply(value, mine)
            self.write(variable, value)

    def _refuse_order(self, variable: Variable) -> NoReturn:
        raise VariableError(
            f"Variable {variable.name!r} was created outside of the strategy's scope, so the replicas "
            "update it in turn; in a compiled step they cannot also read it, because the value would "
            "depend on whose turn it is. Create it inside strategy.scope(), or run the step "
            "eagerly."
        )


class UserJitFrame(StateFrame):
    """Frame of a replica that the user's own ``jax.jit`` traces: it rejects all use of variables."""

    spmd = True
    fuses_collectives = False

    def read(self, variable: Variable) -> Any:
        """Raises: the value would become a constant of the program."""
        self._refuse(variable)

    def write(self, variable: Variable, value: Tensor) -> None:
        """Raises: the new value could not leave the program."""
        self._refuse(variable)

    def check_writable(self, variable: Variable) -> None:
        """Raises: the new value could not leave the program."""
        self._refuse(variable)

    def check_fetchable(self, variable: Variable) -> None:
        """Raises: the rows would become constants of the program."""
        self._refuse(variable)

    def _refuse(self, variable: Variable) -> NoReturn:
        raise ContextError(
            f"Variable {variable.name!r} is used inside the user's own jax.jit. Use stratagem.function "
            "in place of jax.jit, or pass parameters as arguments."
        )
