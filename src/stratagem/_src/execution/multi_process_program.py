"""``MultiProcessProgram``: a compiled step that several processes run together."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from stratagem._src.core.types import PyTree
from stratagem._src.execution.buffer_donation import HeldVariables
from stratagem._src.execution.callbacks import wait_for_callbacks
from stratagem._src.execution.program import Program
from stratagem._src.mesh.dispatch_queue import (
    Listing,
    check_not_in_callback,
    process_monitor,
    run_in_turn,
)
from stratagem._src.variables.locking import Owner, call_as_owner

__all__ = ["MultiProcessProgram", "ProgramIdentity"]


class ProgramIdentity(NamedTuple):
    """Identifies a multi-process program, so that processes can check that they launch the same one.

    Attributes:
        name: Its name in messages.
        fingerprint: Equal in two processes if their programs are equal.
        listing: Its text, to show where two programs differ.
    """

    name: str
    fingerprint: str
    listing: Listing


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

    def run_arrays(self, arrays: list[Any], consts: list[Any] | None = None) -> Any:
        """Runs the program with the arrays of a call, and optionally with other constants."""
        consts = self.consts if consts is None else consts
        check_not_in_callback()
        held = self.variables.hold()
        is_first = self._compile(held, arrays, consts)

        # Take ownership of the variables first, which may wait or fail. Once all processes have agreed to
        # launch the program, this one must launch it: the others would wait in its collectives.
        def run(owner: Owner) -> list[Any]:
            return run_in_turn(
                lambda: self._run_owned(held, arrays, consts, owner, is_first=is_first)
            )

        return self.result(call_as_owner(held, run))

    def _run_owned(
        self,
        held: HeldVariables,
        arrays: list[Any],
        consts: list[Any],
        owner: Owner,
        *,
        is_first: bool,
    ) -> list[Any]:
        """Runs the program on variables that the call owns, and returns its outputs."""
        run = functools.partial(
            self.variables.run, held, consts, arrays, owner=owner, is_first=is_first
        )
        if self._identity is not None:
            process_monitor().before_launch(*self._identity)
        if self._waits:
            outputs, new_values = self._run_and_wait(held, arrays, consts)
        elif self._callback_errors is not None:
            launch = functools.partial(self.variables.launch_owned, held, consts, arrays)
            outputs, new_values = (
                launch() if self._identity is None else process_monitor().run(launch)
            )
        elif self._identity is not None:
            outputs, new_values = process_monitor().run(run)
        else:
            outputs, new_values = run()
        if self._callback_errors is not None:
            name = None if self._identity is None else self._identity.name
            wait_for_callbacks(self._callback_errors, (outputs, new_values), name)
        if self._waits or self._callback_errors is not None:
            outputs = [*outputs, *self.variables.store(held, new_values)]
        return outputs

    def result(self, outputs: list[Any]) -> Any:
        """Builds the function's result, as arrays that are local to this process."""
        assert self.group is not None
        view = self.group.local_view
        return self._structure.unflatten([view(leaf.build(outputs)) for leaf in self._results])

    def _run_and_wait(
        self, held: HeldVariables, arrays: list[Any], consts: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Runs the program without donating anything, and returns its results when it is done."""
        kept = self.variables.borrow_for_update(held)
        results: tuple[list[Any], list[Any]] = process_monitor().run(
            lambda: self.jitted([], kept, consts, arrays)
        )
        return results
