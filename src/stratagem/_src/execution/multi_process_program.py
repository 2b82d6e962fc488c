"""``MultiProcessProgram``: a compiled step that several processes run together; its identity."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.core.types import Jaxpr, PyTree
from stratagem._src.execution.buffer_donation import HeldVariables
from stratagem._src.execution.callbacks import wait_for_callbacks
from stratagem._src.execution.compiler_options import CompilerOptions
from stratagem._src.execution.draws import Draw
from stratagem._src.execution.program import Program
from stratagem._src.execution.traced_function import TracedFunction
from stratagem._src.mesh.dispatch_queue import check_not_in_callback, dispatch
from stratagem._src.mesh.process_monitor import ProgramIdentity, ProgramLine, process_monitor
from stratagem._src.variables.locking import Owner, call_as_owner

__all__ = ["MultiProcessProgram", "identify_program"]


_ADDRESS = re.compile(r"0x[0-9a-f]+")

Launched = tuple[list[Any], list[Any]]
"""The outputs of a program, and the new values of its variables."""


class MultiProcessProgram(Program):
    """A compiled step on the devices of several processes; its results can be used in each.

    Args:
        identity: Its identity; ``None`` if each process can run the program alone, without collectives.
        *args: Arguments of ``Program``.
        **options: Keyword arguments of ``Program``.
    """

    def __init__(self, identity: ProgramIdentity | None, *args: PyTree, **options: PyTree) -> None:
        super().__init__(*args, **options)
        assert self.group is not None
        self._identity = identity
        # If calls wait for the program, nothing is donated: variables keep their old arrays until it is
        # known that no process was lost.
        self._waits = identity is not None and process_monitor().waits_for_programs
        self.launches_only = False

    def run_arrays(
        self,
        arrays: list[Any],
        consts: list[Any] | None = None,
        draws: list[Draw] | None = None,
    ) -> Any:
        """Runs the program with the arrays of a call, and optionally with other constants."""
        consts = self.consts if consts is None else consts
        check_not_in_callback()
        held = self.variables.hold()
        # On accelerators XLA's processes measure kernels together while they compile, and each waits for
        # the others without a limit. So a process compiles there when all have agreed on the program,
        # watched as in its launch.
        if self._waits:
            self._compile(held, arrays, consts)

        # Take ownership of the variables first, which may wait or fail. Once all processes have agreed to
        # launch the program, this one must launch it: the others would wait in its collectives.
        def run(owner: Owner) -> list[Any]:
            launch = self._launching(held, arrays, consts, draws, owner)
            outputs, new_values = dispatch(
                launch, self.group, identity=self._identity, finish=self._finish
            )
            if self._waits or self._callback_errors is not None:
                outputs = [*outputs, *self.variables.store(held, new_values, draws)]
            return outputs

        return self.result(call_as_owner(held, run))

    def _launching(
        self,
        held: HeldVariables,
        arrays: list[Any],
        consts: list[Any],
        draws: list[Draw] | None,
        owner: Owner,
    ) -> Callable[[], Launched]:
        """Returns a function that launches the program on variables that the call owns."""
        if self._waits:
            # The process monitor calls it in a thread of its own, so the arrays are taken here.
            kept = self.variables.borrow_for_update(held)
            return functools.partial(self.jitted, [], kept, consts, arrays)

        def compile_and_launch() -> Launched:
            is_first = self._compile(held, arrays, consts)
            if self._callback_errors is not None:
                return self.variables.launch_owned(held, consts, arrays)
            return self.variables.run(held, consts, arrays, draws, owner=owner, is_first=is_first)

        return compile_and_launch

    def _finish(self, launched: Launched) -> None:
        if self._callback_errors is not None:
            name = None if self._identity is None else self._identity.name
            wait_for_callbacks(self._callback_errors, launched, name)

    def result(self, outputs: list[Any]) -> Any:
        """Builds the function's result, as arrays that are local to this process."""
        assert self.group is not None
        view = self.group.local_view
        return self._structure.unflatten([view(leaf.build(outputs)) for leaf in self._results])


def identify_program(
    traced: TracedFunction, used: Sequence[int], options: CompilerOptions | None = None
) -> ProgramIdentity | None:
    """Returns what identifies a program in all processes, or ``None`` if each can run it alone.

    Args:
        traced: The traced function.
        used: The positions of the variables that the program uses.
        options: Flags of XLA for the program, by which it may order its collectives.
    """
    if traced.group is None or not traced.group.spans_processes:
        return None
    jaxpr, variables, inputs = traced.jaxpr, traced.variables, traced.inputs
    # Without unused variables, which may differ between processes.
    kept = [*(jaxpr.invars[i] for i in used), *jaxpr.invars[len(variables) :]]
    jaxpr = jaxpr.replace(invars=kept, debug_info=jaxpr.debug_info.with_unknown_names())
    text = str(jaxpr)
    split = [variables[i].program_layout for i in used]
    flags = sorted((options or {}).items())
    # Nothing in it communicates: no replicas run in it, and no array is divided between processes. Each
    # process may then run it alone.
    if "shard_map" not in text and set(split) <= {None} and not inputs.groups():
        return None
    avals = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in inputs.avals())
    # The text of a jaxpr contains addresses of functions, which differ between processes.
    content = f"{_ADDRESS.sub('', text)} {split}{flags or ''}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return ProgramIdentity(f"{traced.name}({avals})", digest, lambda: _listing(jaxpr, split, flags))


def _listing(
    jaxpr: Jaxpr, split: Sequence[int | None], flags: Sequence[tuple[str, object]]
) -> list[ProgramLine]:
    """Returns the text of a program line by line, with source locations in the user's code."""
    compared = [_ADDRESS.sub("", line) for line in str(jaxpr).splitlines()]
    shown = jaxpr.pretty_print(source_info=True).splitlines()
    if len(shown) != len(compared):
        shown = compared
    lines = [ProgramLine(*pair) for pair in zip(compared, shown, strict=True)]
    variables = f"variables sharded along the dimensions {list(split)}"
    options = f"compiler options {list(flags)}"
    return [*lines, ProgramLine(variables, variables), ProgramLine(options, options)]
