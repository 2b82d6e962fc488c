"""A traced function turned into a compiled program of variables and inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

from stratagem.core import jax_settings
from stratagem.core.errors import ContextError, TracedValueError
from stratagem.core.launch import launch
from stratagem.core.replica_group import ReplicaGroup
from stratagem.core.tracing import is_tracer
from stratagem.execution.callbacks import guard_callbacks
from stratagem.execution.frames import FunctionFrame
from stratagem.execution.signature import CallInputs
from stratagem.values import state
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica
from stratagem.values.registry import live_variables
from stratagem.values.regroup import is_value_leaf
from stratagem.values.variable import STORAGE_LOCK, Variable

__all__ = ["Program", "trace_program"]


@dataclass(frozen=True, slots=True)
class _Result:
    """Where one leaf of the function's result comes from.

    Exactly one of ``output`` (position among the program's outputs), ``variable`` (whose array it is)
    and ``static`` counts.
    """

    output: int | None = None
    variable: Variable | None = None
    static: Any = None
    group: ReplicaGroup | None = None
    scalar: bool = False
    mirrored: bool = False

    def build(self, outputs: Sequence[Any]) -> Any:
        if self.output is not None:
            array = outputs[self.output]
        elif self.variable is not None:
            self.variable.mark_shared()
            array = self.variable._array
        else:
            return self.static
        if self.group is None:
            return array
        if self.mirrored:
            return Mirrored(self.group, array)
        return PerReplica.from_global(self.group, array, scalar=self.scalar)


@dataclass(frozen=True, slots=True)
class _Write:
    """A variable that the program gives a new value."""

    variable: Variable
    shared: bool


class Program:
    """A compiled step: pure inside, with variables as inputs and outputs."""

    def __init__(
        self,
        jitted: Callable[..., Any],
        *,
        donated: list[Variable],
        kept: list[Variable],
        consts: list[Any],
        writes: list[_Write],
        results: list[_Result],
        structure: Any,
        group: ReplicaGroup | None,
        callback_errors: list[BaseException] | None,
    ) -> None:
        self._jitted = jitted
        self._donated = donated
        self._kept = kept
        self._consts = consts
        self._writes = writes
        self._results = results
        self._structure = structure
        self._group = group
        self._serialize = group is not None and group.serialize_programs
        self._callback_errors = callback_errors

    def __call__(self, arrays: list[Any]) -> Any:
        """Runs the program once and returns the function's result."""
        group = self._group
        if group is not None:
            arrays = [self._place(array, group) for array in arrays]
        with STORAGE_LOCK:
            outputs, new_values = launch(
                self._jitted,
                [variable.take_for_program(group, donate=True) for variable in self._donated],
                [variable.take_for_program(group, donate=False) for variable in self._kept],
                self._consts,
                arrays,
                serialize=self._serialize,
            )
            if self._callback_errors is None:
                return self._accept(outputs, new_values)
        self._wait_for_callbacks(outputs, new_values)
        with STORAGE_LOCK:
            return self._accept(outputs, new_values)

    def _accept(self, outputs: list[Any], new_values: list[Any]) -> Any:
        for write, value in zip(self._writes, new_values, strict=True):
            write.variable.accept_from_program(value, shared=write.shared)
        leaves = [result.build(outputs) for result in self._results]
        return jax.tree.unflatten(self._structure, leaves)

    def _wait_for_callbacks(self, outputs: list[Any], new_values: list[Any]) -> None:
        errors = self._callback_errors
        assert errors is not None
        jax.block_until_ready((outputs, new_values))
        jax.effects_barrier()
        if errors:
            first = errors[0]
            errors.clear()
            raise first

    def _place(self, array: Any, group: ReplicaGroup) -> Any:
        if not isinstance(array, jax.Array):
            return array if group.size > 1 else jax.device_put(array, group.replicated)
        sharding = array.sharding
        if sharding == group.replicated or sharding == group.sharded:
            return array
        if group.size > 1 and not array.committed:
            return array
        return jax.device_put(array, group.replicated)


def trace_program(
    fn: Callable[..., Any], inputs: CallInputs, *, may_create: bool
) -> tuple[Program | None, bool]:
    """Traces ``fn`` once and returns its program.

    Returns:
        The program and ``False``; or, if the function created variables, ``None`` and ``True``: the
        variables then have their initial values and the function is to be traced again.
    """
    candidates = live_variables()
    frame = FunctionFrame(candidates, may_create=may_create)
    collected: dict[str, Any] = {}

    def traced(variable_values: Sequence[Any], arrays: list[Any]) -> Any:
        frame.bind(variable_values)
        args, kwargs = inputs.rebuild(arrays)
        with state.enter(frame):
            result = fn(*args, **kwargs)
        leaves, collected["structure"] = jax.tree.flatten(result, is_leaf=is_value_leaf)
        collected["results"], outputs = _collect_results(leaves)
        created = [jnp.asarray(value) for _, value in frame.created]
        return outputs, frame.written_values(), created

    avals = [jax.ShapeDtypeStruct(v.program_shape, v.dtype) for v in candidates]
    try:
        closed = jax.make_jaxpr(traced)(avals, inputs.avals())
    except jax.errors.ConcretizationTypeError as error:
        raise _explain(error) from error
    group = _find_group(frame, inputs, closed, candidates)
    if frame.created:
        _initialize_created(frame, closed, candidates, inputs.arrays, group)
        return None, True
    built = _build(closed, candidates, list(frame.written.values()), collected["results"], group)
    return Program(structure=collected["structure"], group=group, **built), False


def _collect_results(leaves: list[Any]) -> tuple[list[_Result], list[Any]]:
    """Returns how to build each leaf of the result, and the traced arrays among them."""
    results: list[_Result] = []
    outputs: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, PerReplica) and is_tracer(leaf._array):
            results.append(_Result(len(outputs), group=leaf._group, scalar=leaf.scalar))
            outputs.append(leaf._array)
        elif isinstance(leaf, Mirrored) and is_tracer(leaf._value()):
            results.append(_Result(len(outputs), group=leaf._group, mirrored=True))
            outputs.append(leaf._value())
        elif is_tracer(leaf):
            results.append(_Result(len(outputs)))
            outputs.append(leaf)
        else:
            results.append(_Result(static=leaf))
    return results, outputs


def _find_group(
    frame: FunctionFrame, inputs: CallInputs, closed: Any, candidates: Sequence[Variable]
) -> ReplicaGroup | None:
    used = _mentioned(closed.jaxpr)
    groups = dict.fromkeys([*frame.groups, *inputs.groups()])
    for variable, invar in zip(candidates, closed.jaxpr.invars):
        strategy = getattr(variable, "strategy", None)
        if strategy is not None and (id(invar) in used or id(variable) in frame.written):
            groups.setdefault(strategy.replica_group)
    if len(groups) > 1:
        raise ContextError(
            "One function can use the devices of one strategy, but this one uses "
            f"{' and '.join(map(repr, groups))}. Split it into one function for each strategy."
        )
    return next(iter(groups), None)


def _mentioned(jaxpr: Any) -> set[int]:
    return {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}


def _build(
    closed: Any,
    candidates: Sequence[Variable],
    written: list[Variable],
    results: list[_Result],
    group: ReplicaGroup | None,
) -> dict[str, Any]:
    errors: list[BaseException] = []
    jaxpr, has_callbacks = guard_callbacks(closed.jaxpr, errors)
    num_outputs = len(jaxpr.outvars) - len(written)
    owner = {id(v): variable for variable, v in zip(candidates, jaxpr.invars)}
    input_ids = {id(v) for v in jaxpr.invars}
    write_vars = jaxpr.outvars[num_outputs:]
    # A variable assigned its own unchanged value is not written.
    changed = [
        k for k, variable in enumerate(written) if owner.get(id(write_vars[k])) is not variable
    ]
    new_value_of = {id(write_vars[k]): written[k] for k in reversed(changed)}
    written_ids = {id(written[k]) for k in changed}

    positions: list[int] = []
    final_results: list[_Result] = []
    for result in results:
        if result.output is None:
            final_results.append(result)
            continue
        var_id = id(jaxpr.outvars[result.output])
        source = new_value_of.get(var_id)
        if source is None and var_id in owner and id(owner[var_id]) not in written_ids:
            source = owner[var_id]
        if source is not None and _same_placement(source, result, group):
            final_results.append(dataclasses.replace(result, output=None, variable=source))
        else:
            final_results.append(dataclasses.replace(result, output=len(positions)))
            positions.append(result.output)

    out_ids = [id(jaxpr.outvars[p]) for p in positions] + [id(write_vars[k]) for k in changed]
    writes = [
        _Write(
            written[k],
            shared=id(write_vars[k]) in input_ids
            or isinstance(write_vars[k], jax.extend.core.Literal)
            or out_ids.count(id(write_vars[k])) > 1,
        )
        for k in changed
    ]
    mentioned = _mentioned(jaxpr)
    used = [i for i in range(len(candidates)) if id(jaxpr.invars[i]) in mentioned]
    may_donate = not has_callbacks and not jax_settings.checks_results()
    donated = [i for i in used if may_donate and id(candidates[i]) in written_ids]
    kept = [i for i in used if i not in donated]
    output_positions = [*positions, *(num_outputs + k for k in changed)]

    def program(
        donated_values: list[Any], kept_values: list[Any], consts: list[Any], arrays: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        full: list[Any] = [None] * len(candidates)
        for i, value in zip([*donated, *kept], [*donated_values, *kept_values], strict=True):
            full[i] = value
        outs = jax.core.eval_jaxpr(jaxpr, consts, *full, *arrays)
        chosen = [outs[position] for position in output_positions]
        return chosen[: len(positions)], chosen[len(positions) :]

    options: dict[str, Any] = {"donate_argnums": (0,)}
    if group is not None:
        by_position = {r.output: r for r in results if r.output is not None}
        options["out_shardings"] = (
            [
                group.sharded
                if by_position[p].group is not None and not by_position[p].mirrored
                else group.replicated
                for p in positions
            ],
            [
                group.sharded if write.variable.sharded_in_program else group.replicated
                for write in writes
            ],
        )
    return {
        "jitted": jax.jit(program, **options),
        "donated": [candidates[i] for i in donated],
        "kept": [candidates[i] for i in kept],
        "consts": [group.replicate(c) if group is not None else c for c in closed.consts],
        "writes": writes,
        "results": final_results,
        "callback_errors": errors if has_callbacks else None,
    }


def _same_placement(variable: Variable, result: _Result, group: ReplicaGroup | None) -> bool:
    """Returns whether a variable's stored array can serve as the result."""
    return result.group is None and variable.stores_program_results(group)


def _initialize_created(
    frame: FunctionFrame,
    closed: Any,
    candidates: Sequence[Variable],
    arrays: list[Any],
    group: ReplicaGroup | None,
) -> None:
    """Computes the initial values of variables that were created while tracing."""
    jaxpr = closed.jaxpr
    count = len(frame.created)
    used = _mentioned(jaxpr)
    with STORAGE_LOCK:
        values = [
            variable.take_for_program(group, donate=False) if id(invar) in used else None
            for variable, invar in zip(candidates, jaxpr.invars)
        ]

    def initial_values(values: list[Any], arrays: list[Any]) -> list[Any]:
        outs = jax.core.eval_jaxpr(jaxpr, closed.consts, *values, *arrays)
        return outs[len(outs) - count :]

    computed = jax.jit(initial_values)(values, arrays)
    for (variable, _), value in zip(frame.created, computed, strict=True):
        variable.initialize(value.addressable_data(0))


def _explain(error: Exception) -> TracedValueError:
    return TracedValueError(
        "The function needs the value of an array that is only known when the compiled program runs, "
        "for example in `if replica_id == 0`, `while loss > x`, float(x), or as a Python index. Use "
        "jnp.where or lax.cond in place of `if`, lax.while_loop in place of `while`; or run it eagerly: "
        "without stratagem.function, or after stratagem.config.run_functions_eagerly(True). "
        f"JAX says: {str(error).splitlines()[0]}"
    )
