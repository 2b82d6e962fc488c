"""Writes the code that launches a program again: the same as ``VariableBuffers.run``, only faster.

``run`` decides in each call what depends only on the program: which variables are donated, kept, returned.
Here these decisions are made once, and the text that remains has names for what they found.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import starmap
from typing import Any

from jax.core import Tracer

from stratagem._src.core.codegen import CodeWriter, listed
from stratagem._src.execution.buffer_donation import (
    BufferLayout,
    VariablesGone,
    dereference_all,
)
from stratagem._src.execution.call_signature import SettingsChanged
from stratagem._src.jax_compat.concrete_array import ConcreteArray
from stratagem._src.mesh.dispatch_queue import QUEUE, write_dispatch
from stratagem._src.process.garbage_collection import GC_RUNS_ON_ALLOCATION
from stratagem._src.variables.locking import ACTIVE_CALLS, STORAGE, STORAGE_LOCK

__all__ = ["write_launch"]

# Each item of this endless iterator is an acquisition of the lock.
_LOCK_ACQUISITIONS = iter(STORAGE_LOCK.acquire, False)


def write_launch(
    layout: BufferLayout,
    call: CodeWriter,
    arrays: str,
    consts: str,
    draws: str | None,
    result: Callable[[list[Any]], Any] | None,
    slow_path: Callable[..., Any],
) -> None:
    """Writes code that runs a program on the arrays of its variables, and returns a result.

    It is valid only if ``passes_as_stored``: written variables store the program's arrays unchanged.

    Args:
        layout: The program and its variables.
        call: The function to write to.
        arrays: The expression of the inputs in that function.
        consts: The expression of the constants.
        draws: The expression of the drawn elements, which the launch empties, if there are any.
        result: Builds the result from the outputs; ``None`` if the result is the first output.
        slow_path: Called with inputs, constants and draws where the generated code does not apply.
    """
    with write_dispatch(call, layout.group):
        _write_locked_section(layout, call, arrays, consts, draws)
    given = ", ".join([arrays, consts, *([] if draws is None else [draws])])
    call.write(f"if use_slow_path: return {call.named(slow_path)}({given})")
    built = "outputs[0]" if result is None else f"{call.named(result)}(outputs)"
    call.write(f"return {built}")


def _write_locked_section(
    layout: BufferLayout, call: CodeWriter, arrays: str, consts: str, draws: str | None
) -> None:
    held = [f"variable_{i}" for i in range(len(layout.references))]
    call.write("gc_was_enabled = False")
    # Advancing the iterator acquires the lock, in a third of the time of `with`. As with `with`, there
    # is no moment at which an interrupt would leave open whether the lock must be released.
    with call.block(f"for _ in {call.named(_LOCK_ACQUISITIONS)}:"):
        with call.block("try:"):
            if not GC_RUNS_ON_ALLOCATION:
                _write_checks(layout, call, arrays, consts, draws, held)
            else:
                with call.block("try:"):
                    _write_checks(layout, call, arrays, consts, draws, held)
                with call.block("finally:"):
                    call.write(f"if gc_was_enabled: {call.named(gc.enable)}()")
        call.write(f"finally: {call.named(STORAGE_LOCK.release)}()")
        call.write("break")


def _write_checks(
    layout: BufferLayout,
    call: CodeWriter,
    arrays: str,
    consts: str,
    draws: str | None,
    held: list[str],
) -> None:
    donated = held[: layout.num_donated]
    reasons = [call.named(ACTIVE_CALLS)]
    reasons += [f"{variable}._shared" for variable in donated]
    reasons += [f"{variable} is None" for variable in held[len(donated) :]]
    found = dereference_all(layout.references)
    as_stored = [variable.passes_as_stored(layout.group) for variable in found]
    reasons += [
        f"{variable}.{found[i].cached_attribute} is not None"
        for i, variable in enumerate(held)
        if as_stored[i] and found[i].cached_attribute is not None
    ]
    group = call.named(layout.group)
    moved = [i for i in layout.kept if not as_stored[i]]
    reasons += [f"{held[i]}._array is not stored_{i}" for i in moved]
    reasons.append(f"{call.named(STORAGE)}.busy")  # in a signal handler: the slow path raises

    for variable, reference in zip(held, layout.references, strict=True):
        call.write(f"{variable} = {call.named(reference)}()")
    for i in moved:
        call.write(f"if {held[i]} is None: raise {call.named(VariablesGone)}")
        call.write(f"stored_{i} = {held[i]}._array")
        call.write(f"moved_{i} = {held[i]}.take_for_program({group}, False)")
    kept = [f"{held[i]}._array" if as_stored[i] else f"moved_{i}" for i in layout.kept]
    call.write("donated = []")
    call.write("kept = []" if kept else f"kept = {call.named([])}")
    launched = f"{call.named(starmap)}({call.named(layout.jitted)}, "
    call.write(f"launched = {launched}((donated, kept, {consts}, {arrays}),))")
    if GC_RUNS_ON_ALLOCATION:
        call.write(f"gc_was_enabled = {call.named(gc.isenabled)}()")
        call.write(f"if gc_was_enabled: {call.named(gc.disable)}()")
    # Signal handlers run after calls and at loop ends. From here until the results are stored the
    # bytecode has neither: unpacking `launched` makes the call that launches the program, and assigns
    # the new arrays directly to the variables. So a handler runs before or after all of it; it never
    # sees donated arrays, and an interrupt never loses results.
    # A variable that was garbage-collected is None, which has no such attribute.
    call.write(f"try: use_slow_path = {' or '.join(reasons)}")
    call.write("except AttributeError: use_slow_path = True")
    with call.block("if not use_slow_path:"):
        if kept:
            call.write(f"kept += {', '.join(kept)},")
        _write_launch(layout, call, draws, held)


def _write_launch(
    layout: BufferLayout, call: CodeWriter, draws: str | None, held: list[str]
) -> None:
    donated, written = held[: layout.num_donated], held[: layout.num_written]
    others = written[len(donated) :]
    queue = call.named(QUEUE)
    if donated:
        call.write(f"donated += {', '.join(f'{variable}._array' for variable in donated)},")
    if others:
        call.write(f"previous = {listed(f'{variable}._array' for variable in others)}")
    stored = listed(f"{variable}._array" for variable in written)
    if draws is not None:
        call.write(f"drawn = {draws}[:]")
    call.write(f"[(outputs, {stored})] = launched")
    if draws is not None:
        call.write(f"del {draws}[:]")
    if layout.awaited is not None:
        part, position = layout.awaited
        awaited = f"{written[position]}._array" if part else f"outputs[{position}]"
        call.write(f"{queue}.in_flight = {awaited}")
    first = f"{written[0]}._array" if written else "outputs and outputs[0]"
    is_concrete = f"type({first}) is {call.named(ConcreteArray)}"
    is_traced = f"isinstance({first}, {call.named(Tracer)})"
    with call.block(f"if not {is_concrete} and {is_traced}:"):
        if written:
            call.write(f"{stored} = donated{' + previous' if others else ''}")
        if layout.awaited is not None:
            call.write(f"{queue}.in_flight = None")
        if draws is not None:
            call.write(f"{draws} += drawn")
        call.write(f"raise {call.named(SettingsChanged)}")
    if layout.returned:
        returned = [held[i] for i in layout.returned]
        for variable in returned:
            call.write(f"{variable}._shared = True")
        taken = ", ".join(f"{variable}._array" for variable in returned)
        call.write(f"outputs = [*outputs, {taken}]")
