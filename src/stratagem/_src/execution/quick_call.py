"""Running a program again for a call like one before it.

While Python prepares a step the devices wait. So for each kind of call a function is made that compares a
call with the one before, with all that is to be compared at hand, and launches the program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core import jax_settings, structures
from stratagem._src.core.straight_line import StraightLine, listed
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.context import Frame
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.execution.call_signature import ArrayLeaf, CallInputs
from stratagem._src.execution.draws import DrawMiss, put_back
from stratagem._src.execution.program import Program, place_on
from stratagem._src.jax_internals.concrete_array import committed_attribute, sharding_attribute
from stratagem._src.mesh import process_settings
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.variables import access

__all__ = ["MISSED", "QuickCall", "make_quick_call"]

MISSED = object()
"""What a quick call returns if the call is of another kind."""

QuickCall = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_Run = Callable[[list[Any], list[Any]], Any]
"""Runs a program, given a call's arrays and iterators in the order of its arguments, and constants."""


def make_quick_call(program: Program, inputs: CallInputs, frame: Frame) -> QuickCall:
    """Returns a function that runs a program for calls like the given one.

    It may raise ``SettingsChanged`` and ``VariablesGone``, as ``Program.run_arrays`` does.

    Args:
        program: The program.
        inputs: The call's arguments, nothing but arrays and iterators.
        frame: The context of the call.
    """
    kinds = inputs.leaves()
    call = StraightLine("quick_call(args, kwargs)", MISSED=MISSED)
    _compare_context(call, frame)
    _compare_settings(call)
    leaves = [f"leaf_{i}" for i in range(len(kinds))]
    _take_apart(call, inputs, leaves)
    arrays = [
        _compare_leaf(call, leaf, kind, program.group, in_place)
        for leaf, kind, in_place in zip(leaves, kinds, _in_place(program, inputs), strict=True)
    ]
    consts = call.named(program.consts)
    if program.launches_only and not program.draws and not program.is_observed_step:
        program.write_run(call, listed(arrays), consts)
    else:
        call.write(f"return {call.named(_run(program, kinds))}({listed(arrays)}, {consts})")
    return call.compile()


def _compare_context(call: StraightLine, frame: Frame) -> None:
    """Writes that a call in another context is missed."""
    eager = f"{call.named(process_settings.functions_run_eagerly)}()"
    call.write(f"if {call.named(access.THIS_THREAD)}.frames or {eager}: return MISSED")
    call.write(f"frames = {call.named(context.THIS_THREAD)}.frames")
    call.write(f"frame = frames[-1] if frames else {call.named(context.PROCESS)}.frame")
    strategy = call.named(weakref.ref(frame.strategy))
    call.write(f"if frame is None or frame.strategy is not {strategy}(): return MISSED")
    other_side = "is not" if frame.replica_context is None else "is"
    call.write(f"if frame.replica_context {other_side} None: return MISSED")


def _compare_settings(call: StraightLine) -> None:
    """Writes that a call under other settings, of those which ``jax.jit`` overlooks, is missed."""
    debug_nans, debug_infs = map(call.named, (jax_settings.DEBUG_NANS, jax_settings.DEBUG_INFS))
    call.write(f"if {debug_nans}.value or {debug_infs}.value: return MISSED")
    default_prng_impl = call.named(jax_settings.DEFAULT_PRNG_IMPL)
    prng_impl = call.named(jax_settings.DEFAULT_PRNG_IMPL.value)
    call.write(f"found = {default_prng_impl}.value")
    call.write(f"if found is not {prng_impl} and found != {prng_impl}: return MISSED")


def _take_apart(call: StraightLine, inputs: CallInputs, leaves: Sequence[str]) -> None:
    """Writes how arguments are taken apart, and that those of another structure are missed."""
    structure = inputs.structure
    if inputs.flat:
        call.write("if kwargs: return MISSED")
        call.write(f"try: {listed(leaves)} = args")
        call.write("except ValueError: return MISSED")
        return
    has_containers = structures.has_containers(structure)
    flatten = call.named(structures.flatten if has_containers else jax.tree.flatten)
    call.write(f"leaves, structure = {flatten}((args, kwargs), {call.named(is_value_leaf)})")
    call.write(f"if structure != {call.named(structure)}: return MISSED")
    call.write(f"{listed(leaves)} = leaves")


def _compare_leaf(
    call: StraightLine,
    leaf: str,
    kind: ArrayLeaf | None,
    placed_on: ReplicaGroup | None,
    in_place: Any,
) -> str:
    """Writes that a call with another kind of argument is missed.

    Args:
        call: The function.
        leaf: The name of the argument.
        kind: What it is to be; ``None`` for an iterator.
        placed_on: Where the program wants it, if it wants it somewhere.
        in_place: Its sharding, if the program takes an array that lies there as it is.

    Returns:
        The name of what the program is given for it.
    """
    leaf_type = DistributedIterator if kind is None else kind.leaf_type
    call.write(f"if type({leaf}) is not {call.named(leaf_type)}: return MISSED")
    if kind is None:
        return leaf
    aval = call.named(kind.aval)
    if kind.group is not None:
        array, group, scalar = f"{leaf}_array", call.named(kind.group), kind.scalar
        call.write(f"if {leaf}._group is not {group}: return MISSED")
        call.write(f"if {leaf}._scalar is not {scalar}: return MISSED")
        call.write(f"{array} = {leaf}._joined")
        call.write(f"if {array} is None: {array} = {leaf}.global_array({group})")
        call.write(f"if {array} is None or {array}.aval != {aval}: return MISSED")
        return array
    sharding = f"{leaf}.{sharding_attribute(leaf_type)}"
    differs = f"{leaf}.{committed_attribute(leaf_type)} is {kind.committed_to is None}"
    call.write(f"if {leaf}.aval != {aval}: return MISSED")
    if placed_on is None:
        call.write(f"if {differs}: return MISSED")
        if kind.committed_to is not None:
            place = call.named(kind.committed_to)
            call.write(f"if {sharding} is not {place} and {sharding} != {place}: return MISSED")
        return leaf
    place = call.named(in_place)
    call.write(f"sharding = {sharding}")
    # What lies as the group lays its arrays was put there.
    with call.block(f"if sharding is not {call.named(placed_on.replicated)}:"):
        call.write(f"if {differs}: return MISSED")
        elsewhere = f"sharding is not {place} and sharding != {place}"
        move = f"{call.named(place_on)}({call.named(placed_on)}, {leaf})"
        call.write(f"if {elsewhere}: {leaf} = {move}")
    return leaf


def _in_place(program: Program, inputs: CallInputs) -> list[Any]:
    """Returns for each argument its sharding, if the program takes an array that lies there as it is.

    ``place_on``, which finds that out for arrays that are committed or not as these are, takes long.
    """
    group, arrays = program.group, iter(inputs.arrays)
    shardings: list[Any] = []
    for kind in inputs.leaves():
        sharding = None
        if kind is not None:
            array = next(arrays)
            if group is not None and kind.group is None and place_on(group, array) is array:
                sharding = array.sharding
        shardings.append(sharding)
    return shardings


def _run(program: Program, kinds: Sequence[ArrayLeaf | None]) -> _Run:
    run = program.as_step(program.repeater())
    if not program.draws and None not in kinds:
        return run
    is_array = [kind is not None for kind in kinds]

    def draw_and_run(taken: list[Any], _: list[Any]) -> Any:
        arrays = [leaf for leaf, counts in zip(taken, is_array, strict=True) if counts]
        iterators = [leaf for leaf, counts in zip(taken, is_array, strict=True) if not counts]
        try:
            draws, consts = program.draw(iterators)
        except DrawMiss:
            return MISSED
        try:
            return run(arrays, consts)
        except BaseException:
            put_back(draws)
            raise

    return draw_and_run
