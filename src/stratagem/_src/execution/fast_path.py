"""The fast path: runs a program again for a call with the same signature as an earlier one.

Devices are idle while Python prepares a step. So for each call signature a function is generated that
checks whether a call matches the signature, with all expected values bound in advance, and launches the
program. ``step(x)`` calls the generated function directly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from stratagem._src.core import structures
from stratagem._src.core.codegen import CodeWriter, listed
from stratagem._src.core.thread_state import THIS_THREAD, THREADS_IN_CONTEXT
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.context import Frame
from stratagem._src.execution.buffer_donation import VariablesGone
from stratagem._src.execution.call_signature import (
    ArrayLeaf,
    CallInputs,
    IteratorLeaf,
    SettingsChanged,
)
from stratagem._src.execution.draws import Draw, DrawMiss, put_back
from stratagem._src.execution.input_placement import place_on
from stratagem._src.execution.program import Program
from stratagem._src.execution.static_key import form_key
from stratagem._src.jax_compat import jax_settings
from stratagem._src.jax_compat.concrete_array import committed_attribute, sharding_attribute
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.mesh import process_settings
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf

__all__ = ["Fallbacks", "FastPath", "make_fast_path"]


class FastPath(NamedTuple):
    """A generated function that runs a program if a call matches its signature, and falls back otherwise.

    Attributes:
        mark: Identifies this fast path to the fallback ``missed``.
        run: The generated function.
    """

    mark: object
    run: Callable[..., Any]


class Fallbacks(NamedTuple):
    """What a fast path calls when it cannot run its program.

    Attributes:
        missed: Called if the call has another signature: with the mark, positional and keyword arguments.
        failed: Called if the signature matches but the program is stale: with the arguments.
    """

    missed: Callable[[object, tuple[Any, ...], dict[str, Any]], Any]
    failed: Callable[[tuple[Any, ...], dict[str, Any]], Any]


_MISS = "return missed(mark, args, kwargs)"

_Run = Callable[[list[Any], list[Any]], Any]
"""Runs a program, given the arrays and iterators of a call in argument order, and the constants."""


def make_fast_path(
    program: Program, inputs: CallInputs, frame: Frame, fallbacks: Fallbacks
) -> FastPath:
    """Generates the fast path of a program for calls with the signature of the given one.

    Args:
        program: The program.
        inputs: The call's arguments, which must all be arrays or iterators.
        frame: The strategy frame of the call.
        fallbacks: What to call where the fast path cannot run the program.
    """
    # For `step(x)` with one array and one variable the generated text is, shortened (whole examples are in
    # tests/unit/execution/generated_code):
    #     if frame is not frame_of_first_call(): return missed(mark, args, kwargs)
    #     if leaf_0.aval != expected_aval: return missed(mark, args, kwargs)
    #     for _ in acquisitions_of_storage_lock:
    #         [(outputs, [variable_0._array])] = launched
    #         break
    #     return outputs[0]
    # The expected values are names bound in advance, so a check costs one load and one comparison.
    kinds = inputs.leaves()
    mark = object()
    call = CodeWriter("fast_path(*args, **kwargs)", mark=mark, **fallbacks._asdict())
    _compare_context(call, frame)
    _compare_settings(call, makes_keys=program.makes_keys)
    leaves = [f"leaf_{i}" for i in range(len(kinds))]
    _write_flatten(call, inputs, leaves)
    arrays = [
        _compare_leaf(call, leaf, kind, program.group, in_place)
        for leaf, kind, in_place in zip(leaves, kinds, _in_place(program, inputs), strict=True)
    ]
    consts = call.named(program.consts)
    with call.block("try:"):
        if program.launches_only and not program.draws and not program.is_observed_step:
            # The program draws nothing, so iterators among the arguments are not inputs of it.
            taken = [
                a for a, kind in zip(arrays, kinds, strict=True) if isinstance(kind, ArrayLeaf)
            ]
            program.write_run(call, listed(taken), consts)
        else:
            call.write(f"return {call.named(_run(program, kinds))}({listed(arrays)}, {consts})")
    call.write(f"except {call.named(DrawMiss)}: takes_slow_path = True")
    call.write(f"except {call.named((SettingsChanged, VariablesGone))}: takes_slow_path = False")
    with call.block(
        "except ValueError:"
    ):  # JAX compiles no program with options inside another one
        call.write(f"if not {call.named(under_jit)}(): raise")
        call.write("takes_slow_path = True")
    call.write(f"if takes_slow_path: {_MISS}")
    call.write("return failed(args, kwargs)")
    return FastPath(mark, call.compile())


def _compare_context(call: CodeWriter, frame: Frame) -> None:
    """Writes the check that a call is made in the same strategy context."""
    call.write(f"if {call.named(process_settings.PROCESS)}.runs_eagerly: {_MISS}")
    call.write(f"frame = {call.named(context.PROCESS)}.frame")
    with call.block(f"if {call.named(THREADS_IN_CONTEXT)}:"):
        call.write(f"thread = {call.named(THIS_THREAD)}.state")
        call.write(f"if thread.state_frames or thread.tapes: {_MISS}")
        call.write("if thread.strategy_frames: frame = thread.strategy_frames[-1]")
    # Most calls are made in the very same frame. Another frame of the same strategy, on the same side of
    # the replica boundary, matches too.
    with call.block(f"if frame is not {call.named(weakref.ref(frame))}():"):
        strategy = call.named(weakref.ref(frame.strategy))
        call.write(f"if frame is None or frame.strategy is not {strategy}(): {_MISS}")
        other_side = "is not" if frame.replica_context is None else "is"
        call.write(f"if frame.replica_context {other_side} None: {_MISS}")


def _compare_settings(call: CodeWriter, *, makes_keys: bool) -> None:
    """Writes the check of those JAX settings that ``jax.jit`` does not compare by itself."""
    debug_nans, debug_infs = map(call.named, (jax_settings.DEBUG_NANS, jax_settings.DEBUG_INFS))
    call.write(f"if {debug_nans}.value or {debug_infs}.value: {_MISS}")
    if not makes_keys:
        return
    default_prng_impl = call.named(jax_settings.DEFAULT_PRNG_IMPL)
    prng_impl = call.named(jax_settings.DEFAULT_PRNG_IMPL.value)
    call.write(f"found = {default_prng_impl}.value")
    call.write(f"if found is not {prng_impl} and found != {prng_impl}: {_MISS}")


def _write_flatten(call: CodeWriter, inputs: CallInputs, leaves: Sequence[str]) -> None:
    """Writes code that flattens the arguments and checks their structure."""
    structure = inputs.structure
    if inputs.flat:
        call.write(f"if kwargs{'' if leaves else ' or args'}: {_MISS}")
        if leaves:
            call.write(f"try: {listed(leaves)} = args")
            # The number of arguments differs. None fails the type check of the first leaf, which is a miss:
            # so the common case pays for no check of the length.
            call.write(f"except ValueError: {leaves[0]} = None")
        return
    has_containers = structures.has_containers(structure)
    flatten = call.named(structures.flatten if has_containers else jax.tree.flatten)
    call.write(f"leaves, structure = {flatten}((args, kwargs), {call.named(is_value_leaf)})")
    call.write(f"if structure != {call.named(structure)}: {_MISS}")
    if inputs.form:
        same = f"{call.named(form_key)}(structure, []) == {call.named(inputs.form)}"
        call.write(f"if not {same}: {_MISS}")
    call.write(f"{listed(leaves)} = leaves")


def _compare_leaf(
    call: CodeWriter,
    leaf: str,
    kind: ArrayLeaf | IteratorLeaf,
    placed_on: ReplicaGroup | None,
    in_place: jax.sharding.Sharding | None,
) -> str:
    """Writes the check of one argument: its type, shape, dtype and sharding.

    Args:
        call: The function that is generated.
        leaf: The name of the argument in it.
        kind: The expected kind of argument.
        placed_on: The replicas on whose devices the program takes its inputs, if any.
        in_place: The expected sharding, if the program takes an array with that sharding without a copy.

    Returns:
        The name of the value that is passed to the program.
    """
    leaf_type = kind.leaf_type
    call.write(f"if type({leaf}) is not {call.named(leaf_type)}: {_MISS}")
    if isinstance(kind, IteratorLeaf):
        return leaf
    aval = call.named(kind.aval)
    if kind.group is not None:
        array, group, scalar = f"{leaf}_array", call.named(kind.group), kind.scalar
        call.write(f"if {leaf}._group is not {group}: {_MISS}")
        call.write(f"if {leaf}._scalar is not {scalar}: {_MISS}")
        call.write(f"{array} = {leaf}._global")
        call.write(f"if {array} is None: {array} = {leaf}.global_array({group})")
        call.write(f"if {array} is None or {array}.aval != {aval}: {_MISS}")
        return array
    sharding = f"{leaf}.{sharding_attribute(leaf_type)}"
    differs = f"{leaf}.{committed_attribute(leaf_type)} is {kind.committed_to is None}"
    call.write(f"if {leaf}.aval != {aval}: {_MISS}")
    if placed_on is None:
        call.write(f"if {differs}: {_MISS}")
        if kind.committed_to is not None:
            place = call.named(kind.committed_to)
            call.write(f"if {sharding} is not {place} and {sharding} != {place}: {_MISS}")
        return leaf
    place = call.named(in_place)
    call.write(f"sharding = {sharding}")
    # An array with this very sharding object was placed by the group: it needs no further check.
    with call.block(f"if sharding is not {call.named(placed_on.replicated)}:"):
        call.write(f"if {differs}: {_MISS}")
        elsewhere = f"sharding is not {place} and sharding != {place}"
        move = f"{call.named(place_on)}({call.named(placed_on)}, {leaf})"
        call.write(f"if {elsewhere}: {leaf} = {move}")
    return leaf


def _in_place(program: Program, inputs: CallInputs) -> list[Any]:
    """Returns for each argument its sharding, if the program takes it without a copy, else ``None``.

    The fast path compares shardings with this result instead of calling ``place_on``, which is slow.
    """
    group, arrays = program.group, iter(inputs.arrays)
    shardings: list[Any] = []
    for kind in inputs.leaves():
        sharding = None
        if isinstance(kind, ArrayLeaf):
            array = next(arrays)
            if group is not None and kind.group is None and place_on(group, array) is array:
                sharding = array.sharding
        shardings.append(sharding)
    return shardings


def _run(program: Program, kinds: Sequence[ArrayLeaf | IteratorLeaf]) -> _Run:
    run = program.as_step(program.repeater())
    is_array = [isinstance(kind, ArrayLeaf) for kind in kinds]
    if not program.draws and all(is_array):
        return run

    def draw_and_run(taken: list[Any], consts: list[Any]) -> Any:
        arrays = [leaf for leaf, counts in zip(taken, is_array, strict=True) if counts]
        iterators = [leaf for leaf, counts in zip(taken, is_array, strict=True) if not counts]
        draws: list[Draw] = []
        if not program.draws:
            return run(arrays, consts)
        try:
            return run(arrays, program.draw(iterators, draws), draws)
        except BaseException:
            put_back(draws)
            raise

    return draw_and_run
