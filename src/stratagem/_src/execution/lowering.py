"""Lowers the program of a call without running it, also for devices that this machine does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.core.errors import ContextError, OutOfRangeError, UnsupportedError
from stratagem._src.core.types import PyTree
from stratagem._src.execution.build import trace_program
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.compiler_options import CompilerOptions
from stratagem._src.execution.draws import Draw, put_back
from stratagem._src.execution.function_frame import LoopsOverDataset, UncaughtEndOfData
from stratagem._src.execution.input_placement import place_on
from stratagem._src.execution.program import Program
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.mesh.compile_only_group import CompileOnlyGroup
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables import frames

__all__ = ["lower_call", "lower_jitted"]


def lower_call(
    python_function: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
    options: CompilerOptions | None = None,
) -> Any:
    """Returns the ``jax.stages.Lowered`` of the program that a call would run.

    Variables that the function creates are created; nothing else changes, and no element is consumed.

    Raises:
        ContextError: Inside a compiled function or a JAX transformation.
        UnsupportedError: If the call would run eagerly.
    """
    inputs = CallInputs(args, kwargs)
    if frames.current_frame() is not None or inputs.traced or under_jit():
        raise ContextError(
            "A program cannot be lowered inside another one. Call lower() outside of it."
        )
    if inputs.ragged or inputs.has_dataset:
        raise UnsupportedError(
            "Only a call that runs as one program can be lowered, got a dataset or per-replica values of "
            "different shapes, with which it runs eagerly. Pass an iterator, or arrays of one shape."
        )
    try:
        program = trace_program(python_function, inputs, options, may_create=True)
        if program is None:  # it created its variables
            program = trace_program(python_function, inputs, options, may_create=False)
    except LoopsOverDataset:
        raise UnsupportedError(
            "Only a call that runs as one program can be lowered, but this function loops over a dataset, "
            "which it does eagerly. Lower the step in the loop, as a function of one batch."
        ) from None
    except UncaughtEndOfData as error:
        raise OutOfRangeError(*error.args) from None
    assert program is not None
    return _lower_program(program, inputs)


def _lower_program(program: Program, inputs: CallInputs) -> Any:
    group, arrays = program.group, list(inputs.arrays)
    if group is not None:
        for position in inputs.plain_positions():
            arrays[position] = place_on(group, arrays[position])
    draws: list[Draw] = []
    try:
        consts = program.draw(inputs.iterators, draws) if program.draws else program.consts
        donated, kept = program.variables.borrow(program.variables.hold())
        return lower_jitted(program.jitted, (donated, kept, consts, arrays), group)
    finally:
        put_back(draws)


def lower_jitted(jitted: Any, args: tuple[PyTree, ...], group: ReplicaGroup | None) -> Any:
    """Returns ``jitted.lower(*args)`` for the devices of a group."""
    if isinstance(group, CompileOnlyGroup):
        args = jax.tree.map(group.described, args)
    return jitted.lower(*args)
