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

from stratagem._src.core import jax_settings, structures
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.execution.call_signature import CallInputs, SettingsChanged
from stratagem._src.execution.draws import DrawMiss, put_back
from stratagem._src.execution.program import Program, place_on
from stratagem._src.mesh import program_queue as launch
from stratagem._src.runtime.context import Frame
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.variables import access as state
from stratagem._src.variables.variable import STORAGE_LOCK

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
{hold}
    arrays = [{arrays}]
{run}
"""

_DRAW = """
try:
    draws, consts = program.draw([{iterators}])
except DrawMiss:
    return MISSED
try:
{run}
except BaseException:
    put_back(draws)
    raise
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
        outputs, new_values = program.exchange(program.hold(), arrays, consts)
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
                program.keep_despite_interrupts(program.hold(), *finished[0])
            raise
"""


def make_quick_call(program: Program, inputs: CallInputs, frame: Frame) -> QuickCall:
    """Returns a function that runs a program for calls like the given one.

    It may raise ``SettingsChanged``, as ``Program.run_arrays`` does.

    Args:
        program: The program.
        inputs: The call's arguments, nothing but arrays and iterators.
        frame: The context of the call.
    """
    names: dict[str, Any] = {
        "DistributedIterator": DistributedIterator,
        "DrawMiss": DrawMiss,
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
        "put_back": put_back,
        "replicated": program.group and program.group.replicated,
        "starmap": starmap,
        "strategy": weakref.ref(frame.strategy),
        "structure": inputs.structure,
        "wait_for_previous": launch.wait_for_previous,
    }
    compared = _compare_arguments(program, inputs, names)
    hold, run = _run(program, names)
    if program.draws:
        run = _DRAW.format(iterators=compared["iterators"], run=_indent(run))
    source = _CALL.format(
        other_context="is not None" if frame.replica_context is None else "is None",
        hold=_indent(hold),
        run=_indent(run),
        **compared,
    )
    exec(source, names)
    # Popped: a function that is one of its own global variables is not freed at once.
    quick_call: QuickCall = names.pop("quick_call")
    return quick_call


def _compare_arguments(
    program: Program, inputs: CallInputs, names: dict[str, Any]
) -> dict[str, str]:
    described = inputs.leaves()
    leaves = [f"leaf{i}" for i in range(len(described))]
    conditions, arrays, iterators = [], [], []
    for leaf, kind in zip(leaves, described, strict=True):
        if kind is None:
            conditions.append(f"type({leaf}) is not DistributedIterator")
            iterators.append(leaf)
            continue
        names |= {f"{leaf}_type": kind.leaf_type, f"{leaf}_aval": kind.aval}
        conditions.append(f"type({leaf}) is not {leaf}_type")
        array = leaf
        if kind.group is not None:
            names[f"{leaf}_group"] = kind.group
            array = f"{leaf}_array"
            conditions += [
                f"{leaf}._group is not {leaf}_group",
                f"{leaf}._scalar is not {kind.scalar}",
                f"({array} := {leaf}._joined) is None"
                f" and ({array} := {leaf}.global_array({leaf}_group)) is None",
            ]
            arrays.append(array)
        else:
            conditions.append(f"{leaf}.committed is not {kind.committed_to is not None}")
            if program.group is not None:
                placed = f"{leaf} if {leaf}.sharding is replicated else place_on(group, {leaf})"
                arrays.append(placed)
            else:
                arrays.append(leaf)
                if kind.committed_to is not None:
                    names[f"{leaf}_place"] = kind.committed_to
                    conditions.append(f"{leaf}.sharding != {leaf}_place")
        conditions.append(f"{array}.aval != {leaf}_aval")
    unpack = _UNPACK_FLAT if inputs.flat else _UNPACK
    return {
        "unpack": _indent(unpack.format(count=len(leaves), leaves=", ".join(leaves))),
        "other_kind": " or ".join(conditions) or "False",
        "arrays": ", ".join(arrays),
        "iterators": ", ".join(iterators),
    }


def _run(program: Program, names: dict[str, Any]) -> tuple[str, str]:
    """Returns code that takes the program's variables, and code that runs it."""
    if not program.stores_results:
        return "", "return program.run_arrays(arrays, consts)"
    references = program.references()
    name_of = {id(reference): f"variable{i}" for i, reference in enumerate(references)}
    names |= {f"{name_of[id(reference)]}_reference": reference for reference in references}
    hold = [f"{name} = {name}_reference()" for name in name_of.values()]
    gone = " or ".join(f"{name} is None" for name in name_of.values())
    if gone:
        hold += [f"if {gone}:", "    return MISSED"]
    run = _exchange(program, name_of)
    if program.serialize:
        run = _LAUNCH.format(exchange=_indent(run))
    result = "outputs[0]" if program.returns_one_array else "program.result(outputs)"
    return "\n".join(hold), f"{run.strip()}\nreturn {result}"


def _exchange(program: Program, name_of: dict[int, str]) -> str:
    written = [name_of[id(reference)] for reference in program.written]
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
