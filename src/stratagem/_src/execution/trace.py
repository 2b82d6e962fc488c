"""Traces a Python function and builds its program: a pure function of variables and arrays."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.collectives.collective_jit import jit_with_collectives
from stratagem._src.core import structures
from stratagem._src.core.errors import ContextError, TracedValueError
from stratagem._src.core.types import Jaxpr
from stratagem._src.execution.buffer_donation import VariableWrite, borrow_pinned
from stratagem._src.execution.call_signature import CallInputs, SettingsChanged
from stratagem._src.execution.draws import put_back
from stratagem._src.execution.multi_process_program import MultiProcessProgram
from stratagem._src.execution.passes import (
    LIFTS,
    REWRITES,
    LiftContext,
    ProgramContext,
    apply_passes,
    evaluate,
)
from stratagem._src.execution.program import Program, ResultLeaf
from stratagem._src.execution.traced_function import TracedFunction, platform_of
from stratagem._src.execution.tracing_frames import FunctionFrame
from stratagem._src.jax_compat import jax_settings
from stratagem._src.jax_compat.leaked_tracers import find_leaked_tracers, leaked_tracer_error
from stratagem._src.jax_compat.tracing import (
    all_equations,
    is_tracer,
    jax_core,
    mentioned_variables,
)
from stratagem._src.jaxpr.constant_hoisting import current_hoisting
from stratagem._src.mesh.backend_start import prepare_backend
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.process_monitor import ProgramIdentity, ProgramLine
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import frames
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.locking import STORAGE_LOCK
from stratagem._src.variables.variable import Variable

__all__ = ["build_program", "trace_function", "trace_program"]

_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Primitives that make PRNG keys of the default implementation: from seeds, and from arrays of key data.
_MAKE_KEYS = frozenset({"random_seed", "random_wrap"})
_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def trace_program(
    fn: Callable[..., Any], inputs: CallInputs, *, may_create: bool
) -> Program | None:
    """Traces ``fn`` once and returns its program, or ``None`` where ``trace_function`` does."""
    traced = trace_function(fn, inputs, may_create=may_create)
    return None if traced is None else build_program(traced)


def trace_function(
    fn: Callable[..., Any], inputs: CallInputs, *, may_create: bool
) -> TracedFunction | None:
    """Traces ``fn`` once.

    The variables that the function reads become inputs of the program. If it created variables, they get
    their initial values and ``None`` is returned: the caller must then trace the function again.
    """
    prepare_backend()
    frame = FunctionFrame(may_create=may_create)
    structure: Any = None
    results: list[ResultLeaf] = []

    def traced(arrays: list[Any]) -> Any:
        nonlocal structure, results
        frame.open()
        args, kwargs = inputs.rebuild(arrays)
        with frames.enter(frame):
            result = frame.unless_stopped(lambda: fn(*args, **kwargs))
        leaves, structure = structures.flatten((result, frame.remote.operands()), is_value_leaf)
        results, outputs = _collect_results(leaves)
        values = outputs, frame.written_values(), frame.initial_values()
        frame.close()
        return values

    try:
        closed = jax.make_jaxpr(traced)(inputs.avals())
    except _NEEDS_VALUE as error:
        raise _explain(error) from error
    finally:
        put_back(frame.draws)
    # At this point the jaxpr takes the arrays of the call, and returns outputs, new values and initial
    # values of variables. Reads of variables and draws are still marker equations, which the lifts turn
    # into inputs and constants.
    hoisting = None if frame.created else current_hoisting()
    context = LiftContext(frame.draws, inputs.iterators, hoisting, closed.consts)
    jaxpr = apply_passes(LIFTS, closed.jaxpr, context)
    group = _find_group(frame, inputs, context.variables)
    if frame.created:
        values = [*closed.consts, *context.drawn_arrays]
        _initialize_created(frame, jaxpr, values, context.variables, inputs.arrays, group)
        return None
    return TracedFunction(
        name=getattr(fn, "__qualname__", repr(fn)),
        jaxpr=jaxpr,
        consts=context.consts,
        variables=context.variables,
        written=list(frame.written.values()),
        results=results,
        structure=structure,
        group=group,
        platform=platform_of(group, inputs.arrays),
        inputs=inputs.without_arrays(),
        draws=context.draws,
        remote=frame.remote,
    )


def build_program(traced: TracedFunction) -> Program:
    """Builds the program of a traced function."""
    context = ProgramContext.of(traced)
    jaxpr = apply_passes(REWRITES, traced.jaxpr, context)
    return _build(traced, jaxpr, context)


def _collect_results(leaves: list[Any]) -> tuple[list[ResultLeaf], list[Any]]:
    """Returns how to build each leaf of the result, and the traced arrays among them."""
    results: list[ResultLeaf] = []
    outputs: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, PerReplica) and is_tracer(leaf._array):
            results.append(ResultLeaf(len(outputs), group=leaf._group, scalar=leaf.scalar))
            outputs.append(leaf._array)
        elif isinstance(leaf, Mirrored) and is_tracer(leaf._value()):
            results.append(ResultLeaf(len(outputs), group=leaf._group, mirrored=True))
            outputs.append(leaf._value())
        elif is_tracer(leaf):
            results.append(ResultLeaf(len(outputs)))
            outputs.append(leaf)
        elif isinstance(leaf, Variable):
            results.append(ResultLeaf(variable=weakref.ref(leaf), itself=True))
        else:
            for way, _ in find_leaked_tracers(leaf):
                raise leaked_tracer_error(leaf, way)
            results.append(ResultLeaf(static=leaf))
    return results, outputs


def _find_group(
    frame: FunctionFrame, inputs: CallInputs, variables: Sequence[Variable]
) -> ReplicaGroup | None:
    groups = dict.fromkeys([*frame.groups, *inputs.groups()])
    for variable in (*variables, *frame.written.values()):
        if isinstance(variable, DistributedVariable):
            groups.setdefault(variable.group)
    if len(groups) > 1:
        raise ContextError(
            "A function can use the devices of one strategy only, but this one uses "
            f"{' and '.join(map(repr, groups))}. Split it into one function for each strategy."
        )
    return next(iter(groups), None)


def _build(traced: TracedFunction, jaxpr: Jaxpr, context: ProgramContext) -> Program:
    variables, written, results = traced.variables, traced.written, context.results
    group = traced.group
    num_outputs = len(jaxpr.outvars) - len(written)
    owner = {id(v): variable for variable, v in zip(variables, jaxpr.invars, strict=False)}
    new_vars = jaxpr.outvars[num_outputs:]
    # A variable that is assigned its own unchanged value is not written.
    changed = [k for k, v in enumerate(written) if owner.get(id(new_vars[k])) is not v]
    new_value_of = {id(new_vars[k]): written[k] for k in reversed(changed)}
    written_ids = {id(written[k]) for k in changed}

    def stored_in(result: ResultLeaf) -> Variable | None:
        """Returns the variable that stores this result after the call anyway, if there is one."""
        var_id = id(jaxpr.outvars[result.output])
        source = new_value_of.get(var_id)
        if source is None and id(owner.get(var_id)) not in written_ids:
            source = owner.get(var_id)
        fits = source is not None and result.group is None and source.stores_program_results(group)
        return source if fits else None

    # A result that a variable stores anyway is not an output of the program: it is taken from the variable.
    positions: list[int] = []
    final_results: list[ResultLeaf] = []
    for result in results:
        source = None if result.output is None else stored_in(result)
        if result.output is None:
            final_results.append(result)
        elif source is not None:
            reference = weakref.ref(source)
            final_results.append(dataclasses.replace(result, output=None, variable=reference))
        else:
            final_results.append(dataclasses.replace(result, output=len(positions)))
            positions.append(result.output)

    # An output that is also an input, or that occurs twice, may be one array with two owners. Such a new
    # value is marked as shared, so that the next call does not donate it.
    owners = [id(v) for v in jaxpr.invars] + [id(jaxpr.outvars[p]) for p in positions]
    owners += [id(new_vars[k]) for k in changed]
    mentioned = mentioned_variables(jaxpr)
    used = [i for i in range(len(variables)) if id(jaxpr.invars[i]) in mentioned]
    identity = _program_identity(traced, used)
    # Variables must keep their values when a call fails: because a callback raises, or because another
    # process of a collective is gone. Donated arrays would be lost, so such programs donate nothing.
    may_fail = context.callback_errors is not None or (
        identity is not None and group is not None and group.on_cpu
    )
    may_donate = not may_fail and not jax_settings.checks_results()
    donated = [i for i in used if may_donate and id(variables[i]) in written_ids]
    kept = [i for i in used if i not in donated]
    # `VariableBuffers` expects the donated variables first among the writes, in the same order.
    order = {id(variables[i]): place for place, i in enumerate(donated)}
    changed.sort(key=lambda k: order.get(id(written[k]), len(order)))
    writes = [
        VariableWrite(
            written[k],
            shared=isinstance(new_vars[k], jax_core().Literal) or owners.count(id(new_vars[k])) > 1,
        )
        for k in changed
    ]
    num_variables = len(variables)
    settings = jax_settings.current_settings()
    chosen = [*positions, *(num_outputs + k for k in changed)]
    num_results = len(positions)
    # JAX derives the devices of a program from its inputs and outputs. Without any, its callbacks would run
    # on one device, and nothing could be waited for before the next launch: return a dummy token.
    returns_token = not chosen and bool(jaxpr.effects)

    def program(
        donated_values: list[Any], kept_values: list[Any], consts: list[Any], arrays: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        if jax_settings.current_settings() != settings:
            raise SettingsChanged
        values: list[Any] = [None] * num_variables
        for i, value in zip([*donated, *kept], [*donated_values, *kept_values], strict=True):
            values[i] = value
        outs = evaluate(jaxpr, consts, [*values, *arrays], group)
        if returns_token:
            return [jnp.zeros((), jnp.bool_)], []
        outs = [outs[position] for position in chosen]
        return outs[:num_results], outs[num_results:]

    options: dict[str, Any] = {"donate_argnums": (0,)}
    if group is not None:
        by_position = {result.output: result for result in results}
        splits = [None] if returns_token else [by_position[k].split for k in positions]
        options["out_shardings"] = (
            [group.named_sharding(split) for split in splits],
            [group.named_sharding(write.variable.program_shard_dim) for write in writes],
        )
    make = context.make
    if group is not None and group.spans_processes:
        make = functools.partial(MultiProcessProgram, identity)
    return make(
        jit_with_collectives(program, group, **options),
        donated=[variables[i] for i in donated],
        kept=[variables[i] for i in kept],
        consts=traced.placed_consts(),
        writes=writes,
        results=final_results,
        num_outputs=1 if returns_token else num_results,
        structure=context.structure,
        group=group,
        inputs=traced.inputs,
        draws=traced.draws,
        awaited=(0, 0)
        if returns_token
        else _smallest_output([jaxpr.outvars[position] for position in chosen], num_results),
        makes_keys=any(eqn.primitive.name in _MAKE_KEYS for eqn in all_equations(jaxpr)),
        callback_errors=context.callback_errors,
    )


def _program_identity(traced: TracedFunction, used: Sequence[int]) -> ProgramIdentity | None:
    """Returns what identifies the program in all processes, or ``None`` if each can run it alone."""
    if traced.group is None or not traced.group.spans_processes:
        return None
    jaxpr, variables, inputs = traced.jaxpr, traced.variables, traced.inputs
    # Without unused variables, which may differ between processes.
    kept = [*(jaxpr.invars[i] for i in used), *jaxpr.invars[len(variables) :]]
    jaxpr = jaxpr.replace(invars=kept, debug_info=jaxpr.debug_info.with_unknown_names())
    text = str(jaxpr)
    split = [variables[i].program_shard_dim for i in used]
    if "shard_map" not in text and set(split) <= {None} and not inputs.groups():
        return None
    avals = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in inputs.avals())
    # The text of a jaxpr contains addresses of functions, which differ between processes.
    content = f"{_ADDRESS.sub('', text)} {split}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return ProgramIdentity(f"{traced.name}({avals})", digest, lambda: _listing(jaxpr, split))


def _listing(jaxpr: Jaxpr, split: Sequence[Any]) -> list[ProgramLine]:
    """Returns the text of a program line by line, with source locations in the user's code."""
    compared = [_ADDRESS.sub("", line) for line in str(jaxpr).splitlines()]
    shown = jaxpr.pretty_print(source_info=True).splitlines()
    if len(shown) != len(compared):
        shown = compared
    lines = [ProgramLine(*pair) for pair in zip(compared, shown, strict=True)]
    variables = f"variables sharded along the dimensions {list(split)}"
    return [*lines, ProgramLine(variables, variables)]


def _smallest_output(outvars: Sequence[Any], num_results: int) -> tuple[int, int] | None:
    """Returns where the smallest array is: in the results (0) or the new values (1), and its position."""
    if not outvars:
        return None
    position = min(range(len(outvars)), key=lambda k: outvars[k].aval.size)
    return (0, position) if position < num_results else (1, position - num_results)


def _initialize_created(
    frame: FunctionFrame,
    traced: Jaxpr,
    consts: Sequence[Any],
    variables: Sequence[Variable],
    arrays: list[Any],
    group: ReplicaGroup | None,
) -> None:
    """Computes the initial values of variables that were created while tracing and have none yet."""
    if all(variable.initialized for variable in frame.created):
        return
    count = len(frame.created)
    jaxpr = _only_for_last_outputs(traced, count)
    mentioned = mentioned_variables(jaxpr)
    is_used = [id(invar) in mentioned for invar in jaxpr.invars[: len(variables)]]
    with STORAGE_LOCK:
        pinned = iter([borrow_pinned(v, group) for v in itertools.compress(variables, is_used)])
    values = [next(pinned) if used else None for used in is_used]

    def initial_values(values: list[Any], arrays: list[Any]) -> list[Any]:
        return jax.core.eval_jaxpr(jaxpr, consts, *values, *arrays)

    names = ", ".join(variable.name for variable in frame.created)
    computed = launch(jax.jit(initial_values), (values, arrays), group, f"creation of {names}")
    for variable, value in zip(frame.created, computed, strict=True):
        if not variable.initialized:
            variable.initialize(value.addressable_data(0))


def _only_for_last_outputs(jaxpr: Jaxpr, count: int) -> Any:
    """Returns ``jaxpr`` reduced to its last outputs and what they depend on; effects are dropped."""
    outvars = jaxpr.outvars[len(jaxpr.outvars) - count :]
    needed = {id(v) for v in outvars}
    eqns = []
    for eqn in reversed(jaxpr.eqns):
        if any(id(v) in needed for v in eqn.outvars):
            needed |= {id(v) for v in eqn.invars}
            eqns.append(eqn)
    return jaxpr.replace(
        eqns=eqns[::-1], outvars=outvars, debug_info=jaxpr.debug_info.with_unknown_names()
    )


def _explain(error: Exception) -> TracedValueError:
    return TracedValueError(
        "The function needs the value of an array that is only known when the compiled program runs, "
        "for example in `if replica_id == 0`, `while loss > x`, float(x), or as a Python index. Use "
        "jnp.where or lax.cond in place of `if`, lax.while_loop in place of `while`; or run it "
        "eagerly: without stratagem.function, or after "
        "stratagem.config.run_functions_eagerly(True). "
        f"JAX says: {str(error).splitlines()[0]}"
    )
