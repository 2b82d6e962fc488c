"""Traces a Python function: its jaxpr is a pure function of variables and arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core import structures
from stratagem._src.core.errors import ContextError, TracedValueError
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.created_variables import initialize_created
from stratagem._src.execution.draws import put_back
from stratagem._src.execution.flax_modules import ModuleArguments, add_flax_hint
from stratagem._src.execution.function_frame import FunctionFrame
from stratagem._src.execution.passes import LIFTS, LiftContext, apply_passes
from stratagem._src.execution.program import ResultLeaf
from stratagem._src.execution.traced_function import TracedFunction, platform_of
from stratagem._src.jax_compat.leaked_tracers import find_leaked_tracers, leaked_tracer_error
from stratagem._src.jax_compat.tracing import is_tracer, without_consts
from stratagem._src.jaxpr.constant_hoisting import current_hoisting
from stratagem._src.mesh.backend_start import prepare_backend
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.telemetry.measurement.recorder import activity
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import frames
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["trace_function"]

_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def trace_function(
    fn: Callable[..., Any], inputs: CallInputs, *, may_create: bool, tries_loop: bool = False
) -> TracedFunction | None:
    """Traces ``fn`` once.

    The variables that the function reads become inputs of the program. If it created variables, they get
    their initial values and ``None`` is returned: the caller must then trace the function again.
    """
    prepare_backend()
    frame = FunctionFrame(may_create=may_create, tries_loop=tries_loop)
    structure: Any = None
    results: list[ResultLeaf] = []

    def traced(arrays: list[Any]) -> Any:
        nonlocal structure, results
        # `make_jaxpr` has just made its own trace the current one, and the frame takes note of it. The
        # first read of a variable is staged there, even if the function reads it in a `lax.scan` or
        # `jax.grad` further inside: a marker in the body of a loop would be no input of the whole program.
        frame.open()
        args, kwargs = inputs.rebuild(arrays)
        modules = ModuleArguments((args, kwargs))
        with frames.enter(frame):
            result = frame.unless_stopped(lambda: fn(*args, **kwargs))
        modules.warn_of_discarded_changes(result)
        leaves, structure = structures.flatten((result, frame.remote.operands()), is_value_leaf)
        results, outputs = _collect_results(leaves)
        # The outputs of the jaxpr, in this order: results, operands of remote updates, new values, initial
        # values. Later steps count the new values from the end: a trace that creates variables never
        # becomes a program, so the last group is empty there.
        values = outputs, frame.written_values(), frame.initial_values()
        frame.close()
        return values

    try:
        with activity("compiling"):
            closed = jax.make_jaxpr(traced)(inputs.avals())
    except _NEEDS_VALUE as error:
        raise _explain(error) from error
    except Exception as error:
        add_flax_hint(error)
        raise
    finally:
        # The trace needed only the shapes of the elements. The run of the program draws them again.
        put_back(frame.draws)
    # At this point the jaxpr takes the arrays of the call, and returns outputs, new values and initial
    # values of variables. Reads of variables and draws are still marker equations, which the lifts turn
    # into inputs and constants.
    hoisting = None if frame.created else current_hoisting()
    context = LiftContext(frame.draws, inputs.iterators, hoisting, closed.consts)
    jaxpr = apply_passes(LIFTS, without_consts(closed.jaxpr), context)
    group = _find_group(frame, inputs, context.variables)
    if frame.created:
        initialize_created(frame.created, jaxpr, context, inputs.arrays, group)
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
        elif is_own_variable(leaf):
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


def _explain(error: Exception) -> TracedValueError:
    return TracedValueError(
        "The function needs the value of an array that is only known when the compiled program runs, "
        "for example in `if replica_id == 0`, `while loss > x`, float(x), or as a Python index. Use "
        "jnp.where or lax.cond in place of `if`, lax.while_loop in place of `while`; or run it "
        "eagerly: without stratagem.function, or after "
        "stratagem.config.run_functions_eagerly(True). "
        "In place of NumPy functions, such as np.asarray(x) or np.mean(x), use those of jax.numpy. "
        f"JAX says: {str(error).splitlines()[0]}"
    )
