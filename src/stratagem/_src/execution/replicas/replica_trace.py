"""Traces a replica function once, as the program of any replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import DeviceError
from stratagem._src.core.types import Jaxpr, PyTreeDef, Tensor
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import ReplicaContextProtocol, StrategyProtocol
from stratagem._src.execution.flax_modules import ModuleArguments
from stratagem._src.execution.replicas.channel import Channel
from stratagem._src.execution.replicas.replica_frame import ReplicaFrame, UserJitFrame
from stratagem._src.execution.replicas.spmd_channel import SpmdChannel
from stratagem._src.execution.replicas.spmd_values import ReplicaArgument, ReplicaResult
from stratagem._src.jax_compat.primitives import (
    PMAX,
    PMIN,
    PSUM,
    REDUCE_SCATTER,
    SHARDING_CONSTRAINT,
    VALUE_CALLBACKS,
)
from stratagem._src.jaxpr.walk import all_equations
from stratagem._src.mesh.logical_devices import (
    PartitionedGroup,
    may_have_layouts,
    tracing_replica,
)
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.variables import frames
from stratagem._src.variables.frames import StateFrame

__all__ = ["ReplicaCall", "ReplicaTrace", "trace_replica"]

_REDUCTIONS = (PSUM, PMAX, PMIN, REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaCall:
    """A call of a replica function: what there is to trace."""

    strategy: StrategyProtocol
    group: ReplicaGroup
    make_context: Callable[[Channel], ReplicaContextProtocol]
    fn: Callable[..., Any]
    arguments: list[ReplicaArgument]
    structure: PyTreeDef

    @property
    def inputs(self) -> list[ReplicaArgument]:
        """The arguments that are arrays: the inputs of the traced function, in order."""
        return [argument for argument in self.arguments if argument.array is not None]

    def run(self, blocks: Sequence[Any], frame: ReplicaFrame, state: StateFrame) -> Any:
        """Calls the function as one replica.

        Args:
            blocks: The replica's part of each input.
            frame: The frame that collectives synchronize.
            state: The frame that reads and writes variables: ``frame``, or one that refuses them.
        """
        remaining = iter(blocks)
        local = [
            argument.static if argument.array is None else self._laid_out(argument, next(remaining))
            for argument in self.arguments
        ]
        args, kwargs = jax.tree.unflatten(self.structure, local)
        state.open()
        replica = self.make_context(SpmdChannel(self.strategy, self.group, frame))
        modules = ModuleArguments((args, kwargs))
        with context.enter(context.Frame(self.strategy, replica)), frames.enter(state):
            result = self.fn(*args, **kwargs)
            frame.flush()
        modules.warn_of_discarded_changes(result)
        return result

    def _laid_out(self, argument: ReplicaArgument, block: Tensor) -> Any:
        """Returns a replica's part of an input, with the layout that sharding rules give a batch."""
        if argument.split is None or not isinstance(self.group, PartitionedGroup):
            return block
        return self.group.constrain_batch(block)


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaTrace:
    """One replica as a jaxpr.

    Attributes:
        closed: Returns the arrays of the result, then what ``frame`` holds at the end: new values and
            initial values of variables, and the operands of remote updates.
        result: The rest of the result.
        frame: Which variables the replica wrote, created and updates remotely.
        with_layouts: Whether the mesh axes within a replica are left to XLA.
    """

    closed: Jaxpr
    result: ReplicaResult
    frame: ReplicaFrame
    with_layouts: bool

    @property
    def creates_variables(self) -> bool:
        """Whether the replica created variables."""
        return bool(self.frame.created)


def trace_replica(call: ReplicaCall, *, in_function: bool) -> ReplicaTrace:
    """Traces a replica with those mesh axes manual that it needs.

    Layouts within a replica (tensor parallelism) need automatic mesh axes. Whether the function uses any is
    only known once it has been traced: a wrong guess is traced again. A function that creates variables is
    not, since it would create them twice; the outer function is then traced once more anyway.
    """
    group = call.group
    trace = _trace(call, in_function=in_function, with_layouts=may_have_layouts(group))
    # The first layout of the process is requested in this very trace, which decided without knowing it.
    if not trace.with_layouts and may_have_layouts(group) and not trace.creates_variables:
        trace = _trace(call, in_function=in_function, with_layouts=True)
    if trace.with_layouts and not _has_layouts(trace.closed.jaxpr) and not trace.creates_variables:
        trace = _trace(call, in_function=in_function, with_layouts=False)
    if trace.with_layouts:
        _check_partitioned(group, trace.closed.jaxpr)
    return trace


def _trace(call: ReplicaCall, *, in_function: bool, with_layouts: bool) -> ReplicaTrace:
    # Each trace has its own frame: what an abandoned one wrote is forgotten with it.
    frame = ReplicaFrame(call.group)
    results: list[ReplicaResult] = []

    def replica(blocks: Sequence[Any]) -> Any:
        returned = call.run(blocks, frame, frame if in_function else UserJitFrame())
        state = (frame.written_values(), frame.initial_values(), frame.remote.operands())
        frame.close()
        result, arrays = ReplicaResult.split(returned)
        results.append(result)
        return arrays, *state

    with tracing_replica(call.group, with_layouts=with_layouts):
        closed = jax.make_jaxpr(replica, axis_env=[(REPLICA_AXIS, call.group.size)])(
            [argument.local_aval for argument in call.inputs]
        )
    [result] = results
    return ReplicaTrace(closed, result, frame, with_layouts)


def _has_layouts(jaxpr: Jaxpr) -> bool:
    """Returns whether a traced replica contains layouts."""
    return any(eqn.primitive.name == SHARDING_CONSTRAINT for eqn in all_equations(jaxpr))


def _check_partitioned(group: ReplicaGroup, jaxpr: Jaxpr) -> None:
    """Checks that XLA can compile a replica that was traced with layouts.

    Raises:
        DeviceError: If it contains an operation that is not supported with layouts.
    """
    for eqn in all_equations(jaxpr):
        name = eqn.primitive.name
        if name in VALUE_CALLBACKS:
            raise DeviceError(
                f"A step that lays out values over logical devices cannot contain {name}, which JAX "
                "does not support there. Use jax.debug.callback or jax.debug.print, or leave out "
                "the layouts."
            )
        # XLA would abort the process: "Invalid binary instruction opcode copy".
        is_bfloat16 = eqn.outvars and getattr(eqn.outvars[0].aval, "dtype", 0) == jnp.bfloat16
        if group.widens_bfloat16 and name in _REDUCTIONS and is_bfloat16:
            raise DeviceError(
                f"On virtual CPU devices XLA cannot compile {name} of bfloat16 in a step that lays "
                "out values over logical devices. Use all_reduce() of the replica context, which "
                "converts to float32, or convert around it."
            )
