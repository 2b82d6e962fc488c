"""Builds the program of a traced function: applies the rewrites, plans it, and hands it to ``jax.jit``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from stratagem._src.collectives.collective_jit import jit_with_collectives
from stratagem._src.core.types import Jaxpr
from stratagem._src.execution.buffer_donation import VariableWrite
from stratagem._src.execution.call_signature import CallInputs, SettingsChanged
from stratagem._src.execution.compiler_options import CompilerOptions, options_for
from stratagem._src.execution.multi_process_program import MultiProcessProgram, identify_program
from stratagem._src.execution.passes import (
    REWRITES,
    ProgramContext,
    apply_passes,
    evaluate,
    rewrites_are_on,
)
from stratagem._src.execution.program import Program
from stratagem._src.execution.program_plan import ProgramPlan, find_reads, plan_program
from stratagem._src.execution.trace import trace_function
from stratagem._src.execution.traced_function import TracedFunction
from stratagem._src.jax_compat import jax_settings
from stratagem._src.jax_compat.primitives import KEY_MAKERS
from stratagem._src.jaxpr.walk import all_equations
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["build_program", "trace_program"]


def trace_program(
    fn: Callable[..., Any],
    inputs: CallInputs,
    options: CompilerOptions | None = None,
    *,
    may_create: bool,
) -> Program | None:
    """Traces ``fn`` once and returns its program, or ``None`` where ``trace_function`` does."""
    traced = trace_function(fn, inputs, may_create=may_create)
    return None if traced is None else build_program(traced, options)


def build_program(traced: TracedFunction, options: CompilerOptions | None = None) -> Program:
    """Builds the program of a traced function.

    Args:
        traced: The traced function.
        options: Flags of XLA that the user has chosen for it.
    """
    context = ProgramContext.of(traced)
    jaxpr = apply_passes(REWRITES, traced.jaxpr, context)
    group, make = traced.group, context.make
    reads = find_reads(jaxpr, traced.variables)
    options = options_for(jaxpr, traced.platform, options, pipelined=rewrites_are_on())
    identity = identify_program(traced, [read.position for read in reads], options)
    # Variables must keep their values when a call fails: because a callback raises, or because another
    # process of a collective is gone. Donated arrays would be lost, so such programs donate nothing.
    may_lose_workers = identity is not None and group is not None and group.on_cpu
    may_fail = context.callback_errors is not None or may_lose_workers
    may_donate = not may_fail and not jax_settings.checks_results()
    plan = plan_program(jaxpr, traced, context.results, reads, may_donate=may_donate)
    # JAX derives the devices of a program from its inputs and outputs. Without any, its callbacks would run
    # on one device, and nothing could be waited for before the next launch: return a dummy token.
    returns_token = not plan.returned_positions() and bool(jaxpr.effects)
    if group is not None and group.spans_processes:
        make = functools.partial(MultiProcessProgram, identity)
    return make(
        jit_with_collectives(
            _program_function(jaxpr, plan, group, len(traced.variables), returns_token),
            group,
            donate_argnums=(0,),
            compiler_options=options,
            **_output_shardings(plan, group, returns_token),
        ),
        donated=[read.variable for read in plan.donated],
        kept=[read.variable for read in plan.kept],
        consts=traced.placed_consts(),
        writes=[VariableWrite(new.variable, new.shared) for new in plan.new_values],
        results=plan.leaves,
        num_outputs=1 if returns_token else len(plan.outputs),
        structure=context.structure,
        group=group,
        inputs=traced.inputs,
        draws=traced.draws,
        awaited=(0, 0) if returns_token else _smallest_output(jaxpr, plan),
        makes_keys=any(eqn.primitive.name in KEY_MAKERS for eqn in all_equations(jaxpr)),
        callback_errors=context.callback_errors,
    )


def _program_function(
    jaxpr: Jaxpr,
    plan: ProgramPlan,
    group: ReplicaGroup | None,
    num_variables: int,
    returns_token: bool,
) -> Callable[..., tuple[list[Any], list[Any]]]:
    """Returns the function that ``jax.jit`` traces and compiles."""
    settings = jax_settings.current_settings()
    # Only positions: the function must not keep the variables of the plan alive.
    taken = [read.position for read in (*plan.donated, *plan.kept)]
    returned, num_outputs = plan.returned_positions(), len(plan.outputs)

    def program(
        donated: list[Any], kept: list[Any], consts: list[Any], arrays: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        if jax_settings.current_settings() != settings:
            raise SettingsChanged
        values: list[Any] = [None] * num_variables
        for position, value in zip(taken, [*donated, *kept], strict=True):
            values[position] = value
        results = evaluate(jaxpr, consts, [*values, *arrays], group)
        if returns_token:
            return [jnp.zeros((), jnp.bool_)], []
        chosen = [results[position] for position in returned]
        return chosen[:num_outputs], chosen[num_outputs:]

    return program


def _output_shardings(
    plan: ProgramPlan, group: ReplicaGroup | None, returns_token: bool
) -> dict[str, Any]:
    """Returns the option of ``jax.jit`` for the shardings of outputs and new values."""
    if group is None:
        return {}
    splits = [None] if returns_token else [output.split for output in plan.outputs]
    shardings = (
        [group.program_sharding(group.named_sharding(split)) for split in splits],
        [new.variable.program_sharding(group) for new in plan.new_values],
    )
    return {"out_shardings": shardings}


def _smallest_output(jaxpr: Jaxpr, plan: ProgramPlan) -> tuple[int, int] | None:
    """Returns where the smallest array is: in the outputs (0) or the new values (1), and its position."""
    sizes: Sequence[int] = [jaxpr.outvars[p].aval.size for p in plan.returned_positions()]
    if not sizes:
        return None
    # Any result is ready when the program is. The smallest keeps the least memory alive until the next
    # launch.
    position = sizes.index(min(sizes))
    num_outputs = len(plan.outputs)
    return (0, position) if position < num_outputs else (1, position - num_outputs)
