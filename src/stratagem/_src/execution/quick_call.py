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
from stratagem._src.current_strategy.context import Frame
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.execution.call_signature import ArrayLeaf, CallInputs
from stratagem._src.execution.draws import DrawMiss, put_back
from stratagem._src.execution.program import Program, place_on
from stratagem._src.values.distributed_values import is_value_leaf

__all__ = ["MISSED", "QuickCall", "make_quick_call"]

MISSED = object()
"""What a quick call returns if the call is of another kind."""

QuickCall = Callable[[Frame, tuple[Any, ...], dict[str, Any]], Any]

_Run = Callable[[list[Any], list[Any]], Any]
"""Runs a program, given a call's arrays and iterators in the order of its arguments, and constants."""

_ITERATOR = ArrayLeaf(DistributedIterator, None, None, False, None)


def make_quick_call(program: Program, inputs: CallInputs, frame: Frame) -> QuickCall:
    """Returns a function that runs a program for calls like the given one.

    It may raise ``SettingsChanged`` and ``VariablesGone``, as ``Program.run_arrays`` does.

    Args:
        program: The program.
        inputs: The call's arguments, nothing but arrays and iterators.
        frame: The context of the call.
    """
    strategy = weakref.ref(frame.strategy)
    in_replica = frame.replica_context is not None
    debug_nans, debug_infs = jax_settings.DEBUG_NANS, jax_settings.DEBUG_INFS
    default_prng_impl = jax_settings.DEFAULT_PRNG_IMPL
    prng_impl = default_prng_impl.value
    flat, structure = inputs.flat, inputs.structure
    flatten = structures.flatten if structures.has_containers(structure) else jax.tree.flatten
    kinds = inputs.leaves()
    # Plain tuples: those with names take much longer to unpack; so do zip and enumerate to make.
    compared: tuple[tuple[Any, ...], ...] = tuple(
        (*(kind or _ITERATOR), in_place)
        for kind, in_place in zip(kinds, _in_place(program, inputs), strict=True)
    )
    num_leaves = len(compared)
    placed_on = program.group
    replicated = None if placed_on is None else placed_on.replicated
    run, consts = _run(program, kinds), program.consts

    def quick_call(frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if frame.strategy is not strategy() or (frame.replica_context is None) is in_replica:
            return MISSED
        if debug_nans.value or debug_infs.value or default_prng_impl.value != prng_impl:
            return MISSED
        leaves: Sequence[Any] = args
        if not flat:
            leaves, found = flatten((args, kwargs), is_value_leaf)
            if found != structure:
                return MISSED
        elif kwargs or len(args) != num_leaves:
            return MISSED
        taken = []
        position = 0
        for leaf in leaves:
            leaf_type, aval, group, scalar, place, in_place = compared[position]
            position += 1  # noqa: SIM113
            if type(leaf) is not leaf_type:
                return MISSED
            array = leaf
            if group is not None:
                if leaf._group is not group or leaf._scalar is not scalar:
                    return MISSED
                array = leaf._joined
                if array is None:
                    array = leaf.global_array(group)
                if array is None or array.aval != aval:
                    return MISSED
            elif aval is not None:
                if leaf.committed is (place is None) or leaf.aval != aval:
                    return MISSED
                if placed_on is None:
                    if place is not None and leaf.sharding != place:
                        return MISSED
                else:
                    sharding = leaf.sharding
                    if (
                        sharding is not replicated
                        and sharding is not in_place
                        and sharding != in_place
                    ):
                        array = place_on(placed_on, leaf)
            taken.append(array)
        return run(taken, consts)

    return quick_call


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
