"""Updates that a client sends together: all of them take place, or an error and none."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray

__all__ = ["GroupedUpdate", "carry_out_together"]


class GroupedUpdate(NamedTuple):
    """One of the updates.

    Attributes:
        stored: What it changes.
        update: Its name.
        operands: The arrays it takes.
        function: What carries it out, if it is not an update of a ``Variable``.
        adopt: Whether a large array that is assigned may be kept instead of copied.
    """

    stored: StoredArray
    update: str
    operands: tuple[Array, ...]
    function: ServerFunction | None = None
    adopt: bool = False

    def check(self) -> None:
        """Raises what is wrong with it."""
        if self.function is None:
            self.stored.check_update(self.update, self.operands)
        else:
            self.function.check(self.stored, self.operands)

    def carry_out_on(self, stored: StoredArray) -> None:
        """Carries it out, after ``check``."""
        if self.function is None:
            stored.carry_out(self.update, self.operands, adopt=self.adopt)
        else:
            self.function.call(stored, self.operands)


def carry_out_together(group: Sequence[GroupedUpdate]) -> None:
    """Carries out all updates in order, or raises and carries out none.

    Everything is checked before the first one takes place. Where a function of the user may still raise,
    the updates of its array are tried on a draft, which becomes the array when no draft has failed. What
    comes after that can fail only if the server runs out of memory.

    Each array changes at one moment for each update, or at one for all of them if there was a draft. A
    reader who reads between may see some arrays with their updates and others without.
    """
    for update in group:
        update.check()
    tried = {
        id(update.stored): update.stored
        for update in group
        if update.function is not None and update.function.may_refuse
    }
    if not tried:
        for update in group:
            update.carry_out_on(update.stored)
        return
    with contextlib.ExitStack() as locks:
        # In one order for everybody, so that no two groups wait for each other.
        for stored in sorted(tried.values(), key=id):
            locks.enter_context(stored.lock)
        counts = collections.Counter(id(update.stored) for update in group)
        drafts = {key: stored.draft(with_states=counts[key] > 1) for key, stored in tried.items()}
        for update in group:
            if id(update.stored) in drafts:
                update.carry_out_on(drafts[id(update.stored)])
        for key, stored in tried.items():
            stored.accept(drafts[key])
    for update in group:
        if id(update.stored) not in drafts:
            update.carry_out_on(update.stored)
