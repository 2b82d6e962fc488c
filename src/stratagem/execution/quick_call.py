"""Running a program again for a call like one before it.

While Python prepares a step the devices wait. So for each kind of call a function is generated that
compares a call with the one before and does what ``Program.run_arrays`` does, argument by argument and
variable by variable: code without loops takes half the time.
"""

from __future__ import annotations

import textwrap
import weakref
from collections.abc import Callable
from itertools import starmap
from typing import Any

import jax

from stratagem.core import jax_settings, launch, structures
from stratagem.core.context import Frame
from stratagem.execution.program import Program, place_on
from stratagem.execution.signature import CallInputs, SettingsChanged
from stratagem.values import state
from stratagem.values.distributed_values import is_value_leaf
from stratagem.values.variable import STORAGE_LOCK

__all__ = ["MISSED", "QuickCall", "make_quick_call"]

MISSED = object()
"""What a quick call returns if the call is of another kind."""

QuickCall = Callable[[Frame, tuple[Any, ...], dict[str, Any]], Any]

_CALL = """
def quick_call(frame, args, kwargs):
    if frame.strategy is not strategy() or frame.replica_context {other_context}:
        return MISSED
    if debug_nans.value or debug_infs.value or default_prng_impl.value != prng_impl:
        return MISSED
{unpack}
    if {other_kind}:
        return MISSED
    arrays = [{arrays}]
{run}
    return {result}
"""

_UNPACK_FLAT = """
if kwargs or len(args) != {count}:
    return MISSED
[{leaves}] = args
"""

_UNPACK = """
leaves, found = flatten((args, kwargs), is_value_leaf)
if found != structure:
    return MISSED
[{leaves}] = leaves
"""

_LAUNCH = """
check_not_in_callback()
with LAUNCH_LOCK:
    wait_for_previous()
{exchange}
"""

# What Program.exchange does, if no variable is shared; the same precautions against interrupts.
_EXCHANGE = """
with STORAGE_LOCK:
    if current_journal() is not None{any_shared}:
        outputs, new_values = program.exchange(arrays, consts)
    else:
        finished = []
        try:
            finished.extend(starmap(jitted, (([{donated}], [{kept}], consts, arrays),)))
            outputs, new_values = finished[0]
            if isinstance({first}, Tracer):
                finished.clear()
                raise SettingsChanged
            {note}
            [{written}] = new_values
        except BaseException:
            if finished:
                program.keep_despite_interrupts(*finished[0])
            raise
"""


def make_quick_call(program: Program, inputs: CallInputs, frame: Frame) -> QuickCall:
    """Returns a function that runs a program for calls like the given one.

    It may raise ``SettingsChanged``, as ``Program.run_arrays`` does.

    Args:
        program: The program; it draws no elements.
        inputs: The call's arguments, nothing but arrays.
        frame: The context of the call.
    """
    names: dict[str, Any] = {
        "LAUNCH_LOCK": launch.LAUNCH_LOCK,
        "MISSED": MISSED,
        "STORAGE_LOCK": STORAGE_LOCK,
        "SettingsChanged": SettingsChanged,
        "Tracer": jax.core.Tracer,
        "check_not_in_callback": launch.check_not_in_callback,
        "consts": program.consts,
        "current_journal": state.current_journal,
        "debug_infs": jax_settings.DEBUG_INFS,
        "debug_nans": jax_settings.DEBUG_NANS,
        "default_prng_impl": jax_settings.DEFAULT_PRNG_IMPL,
        "flatten": (
            structures.flatten if structures.has_containers(inputs.structure) else jax.tree.flatten
        ),
        "group": program.group,
        "is_value_leaf": is_value_leaf,
        "jitted": program.jitted,
        "note_launched": launch.note_launched,
        "place_on": place_on,
        "prng_impl": jax_settings.DEFAULT_PRNG_IMPL.value,
        "program": program,
        "replicated": program.group and program.group.replicated,
        "starmap": starmap,
        "strategy": weakref.ref(frame.strategy),
        "structure": inputs.structure,
        "wait_for_previous": launch.wait_for_previous,
    }
    source = _CALL.format(
        other_context="is not None" if frame.replica_context is None else "is None",
        **_compare_arguments(program, inputs, names),
        **_run(program, names),
    )
    exec(source, names)
    # Popped: a function that is one of its own global variables is not freed at once.
    quick_call: QuickCall = names.pop("quick_call")
    return quick_call


def _compare_arguments(
    program: Program, inputs: CallInputs, names: dict[str, Any]
) -> dict[str, str]:
    leaves = [f"leaf{i}" for i in range(len(inputs.arrays))]
    conditions, arrays = [], []
    for leaf, (leaf_type, aval, group, scalar) in zip(leaves, inputs.array_leaves(), strict=True):
        names |= {f"{leaf}_type": leaf_type, f"{leaf}_aval": aval, f"{leaf}_group": group}
        conditions.append(f"type({leaf}) is not {leaf}_type")
        array = leaf
        if group is not None:
            conditions.append(f"{leaf}._group is not {leaf}_group")
            conditions.append(f"{leaf}._scalar is not {scalar}")
            conditions.append(f"({leaf} := {leaf}._array) is None")
        elif program.group is not None:
            array = f"{leaf} if {leaf}.sharding is replicated else place_on(group, {leaf})"
        conditions.append(f"{leaf}.aval != {leaf}_aval")
        arrays.append(array)
    unpack = _UNPACK_FLAT if inputs.flat else _UNPACK
    return {
        "unpack": _indent(unpack.format(count=len(leaves), leaves=", ".join(leaves))),
        "other_kind": " or ".join(conditions) or "False",
        "arrays": ", ".join(arrays),
    }


def _run(program: Program, names: dict[str, Any]) -> dict[str, str]:
    if not program.stores_results:
        return {"run": "", "result": "program.run_arrays(arrays)"}
    run = _exchange(program, names)
    if program.serialize:
        run = _LAUNCH.format(exchange=_indent(run))
    result = "outputs[0]" if program.returns_one_array else "program.result(outputs)"
    return {"run": _indent(run), "result": result}


def _exchange(program: Program, names: dict[str, Any]) -> str:
    variables = {id(v): v for v in (*program.donated, *program.kept, *program.written)}
    name_of = {key: f"variable{i}" for i, key in enumerate(variables)}
    names |= {name_of[key]: variable for key, variable in variables.items()}
    written = [name_of[id(variable)] for variable in program.written]
    note = "pass"
    if program.awaited is not None:
        part, position = program.awaited
        note = f"note_launched({('outputs', 'new_values')[part]}[{position}])"
    return _EXCHANGE.format(
        any_shared="".join(f" or {name}._shared" for name in written),
        donated=", ".join(f"{name_of[id(v)]}._array" for v in program.donated),
        kept=", ".join(f"{name_of[id(v)]}.take_for_program(group, False)" for v in program.kept),
        first="new_values[0]" if written else "outputs and outputs[0]",
        note=note,
        written=", ".join(f"{name}._array" for name in written),
    )


def _indent(code: str) -> str:
    return textwrap.indent(code.strip(), "    ")
