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
from stratagem._src.core.context import Frame
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.execution.call_signature import ArrayLeaf, CallInputs
from stratagem._src.execution.draws import DrawMiss, put_back
from stratagem._src.execution.program import Program, place_on
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf

__all__ = ["MISSED", "QuickCall", "make_quick_call"]

MISSED = object()
"""What a quick call returns if the call is of another kind."""

QuickCall = Callable[[Frame, tuple[Any, ...], dict[str, Any]], Any]

_Run = Callable[[list[Any]], Any]
"""Runs a program, given the arrays and iterators of a call in the order of its arguments."""

_Take = Callable[[Any], Any]
"""Returns what a program takes of an argument; ``None`` if the argument is of another kind."""


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
    takes = tuple(_take(kind, program.group) for kind in kinds)
    num_leaves = len(takes)
    run = _run(program, kinds)

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
            array = takes[position](leaf)
            if array is None:
                return MISSED
            taken.append(array)
            position += 1
        return run(taken)

    return quick_call


def _take(kind: ArrayLeaf | None, group: ReplicaGroup | None) -> _Take:
    if kind is None:
        return _take_iterator
    if kind.group is not None:
        return _take_per_replica(kind)
    return _take_array(kind) if group is None else _take_array_for(group, kind)


def _take_iterator(leaf: Any) -> Any:
    return leaf if type(leaf) is DistributedIterator else None


def _take_per_replica(kind: ArrayLeaf) -> _Take:
    leaf_type, aval, group, scalar, _ = kind

    def take(leaf: Any) -> Any:
        if type(leaf) is not leaf_type or leaf._group is not group or leaf._scalar is not scalar:
            return None
        array = leaf._joined
        if array is None:
            array = leaf.global_array(group)
        return array if array is not None and array.aval == aval else None

    return take


def _take_array(kind: ArrayLeaf) -> _Take:
    leaf_type, aval, _, _, place = kind
    committed = place is not None

    def take(leaf: Any) -> Any:
        fits = (
            type(leaf) is leaf_type
            and leaf.committed is committed
            and leaf.aval == aval
            and (place is None or leaf.sharding == place)
        )
        return leaf if fits else None

    return take


def _take_array_for(group: ReplicaGroup, kind: ArrayLeaf) -> _Take:
    leaf_type, aval, _, _, place = kind
    committed = place is not None
    replicated = group.replicated

    def take(leaf: Any) -> Any:
        if type(leaf) is not leaf_type or leaf.committed is not committed or leaf.aval != aval:
            return None
        return leaf if leaf.sharding is replicated else place_on(group, leaf)

    return take


def _run(program: Program, kinds: Sequence[ArrayLeaf | None]) -> _Run:
    run = program.run_again if program.launches_only else program.run_arrays
    if not program.draws and None not in kinds:
        return run
    is_array = [kind is not None for kind in kinds]

    def draw_and_run(taken: list[Any]) -> Any:
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
