"""A compiled step that several processes run together."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from stratagem._src.execution.buffer_donation import HeldVariables
from stratagem._src.execution.callbacks import wait_for_callbacks
from stratagem._src.execution.program import Program
from stratagem._src.mesh.dispatch_queue import (
    Listing,
    check_not_in_callback,
    process_watch,
    run_in_turn,
)
from stratagem._src.variables.atomicity import Owner, owning

__all__ = ["JointProgram", "ProgramIdentity"]


class ProgramIdentity(NamedTuple):
    """What a program of several processes is called, and what is equal if it is the same.

    Attributes:
        name: What it is called in messages.
        fingerprint: Equal if it is the same.
        listing: Its text, to show where two programs differ.
    """

    name: str
    fingerprint: str
    listing: Listing


class JointProgram(Program):
    """A compiled step on the devices of several processes; its results can be used in each.

    Args:
        identity: ``None`` if each process can run the program on its own: nothing in it is exchanged.
        *args: As of ``Program``.
        **options: Likewise.
    """

    def __init__(self, identity: ProgramIdentity | None, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.group is not None
        self._identity = identity
        # Where it is waited for, all is kept until the end is known: another process may be gone.
        self._waits = identity is not None and process_watch().waits_for_programs
        self.launches_only = False

    def run_arrays(self, arrays: list[Any], consts: list[Any] | None = None) -> Any:
        """Runs the program with the arrays of the arguments, and others in place of its constants."""
        consts = self.consts if consts is None else consts
        check_not_in_callback()
        held = self.variables.hold()
        is_first = self._compile(held, arrays, consts)

        # Before all processes have agreed to launch it: afterwards it must be launched.
        def run(owner: Owner) -> list[Any]:
            return run_in_turn(
                lambda: self._run_owned(held, arrays, consts, owner, is_first=is_first)
            )

        return self.result(owning(held, run))

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
            process_watch().before_launch(*self._identity)
        if self._waits:
            outputs, new_values = self._run_and_wait(held, arrays, consts)
        elif self._callback_errors is not None:
            launch = functools.partial(self.variables.launch_owned, held, consts, arrays)
            outputs, new_values = (
                launch() if self._identity is None else process_watch().run(launch)
            )
        elif self._identity is not None:
            outputs, new_values = process_watch().run(run)
        else:
            outputs, new_values = run()
        if self._callback_errors is not None:
            joint = None if self._identity is None else self._identity.name
            wait_for_callbacks(self._callback_errors, (outputs, new_values), joint)
        if self._waits or self._callback_errors is not None:
            outputs = [*outputs, *self.variables.store(held, new_values)]
        return outputs

    def result(self, outputs: list[Any]) -> Any:
        """Returns the function's result, as arrays that this process can use on its own."""
        assert self.group is not None
        view = self.group.local_view
        return self._structure.unflatten([view(leaf.build(outputs)) for leaf in self._results])

    def _run_and_wait(
        self, held: HeldVariables, arrays: list[Any], consts: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Runs the program without giving anything away, and returns its results when it is done."""
        kept = self.variables.lend_and_note(held)
        results: tuple[list[Any], list[Any]] = process_watch().run(
            lambda: self.jitted([], kept, consts, arrays)
        )
        return results
