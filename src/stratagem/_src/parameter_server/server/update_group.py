"""Groups of updates that are applied atomically: all of them, or none and an error."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray

__all__ = ["GroupedUpdate", "apply_atomically"]


class GroupedUpdate(NamedTuple):
    """One update of a group.

    Attributes:
        stored: The array that it changes.
        update: Its name.
        operands: Its operands.
        function: The function to call, if it is not an update method of ``Variable``.
        adopt: Whether a large assigned array may be kept instead of copied.
    """

    stored: StoredArray
    update: str
    operands: tuple[Array, ...]
    function: ServerFunction | None = None
    adopt: bool = False

    def check(self) -> None:
        """Raises if the update is invalid."""
        if self.function is None:
            self.stored.check_update(self.update, self.operands)
        else:
            self.function.check(self.stored, self.operands)

    def apply_to(self, stored: StoredArray) -> None:
        """Applies the update, after ``check``."""
        if self.function is None:
            stored.apply_unchecked(self.update, self.operands, adopt=self.adopt)
        else:
            self.function.call(stored, self.operands)


def apply_atomically(group: Sequence[GroupedUpdate]) -> None:
    """Applies all updates in order, or raises and applies none.

    Everything is checked before the first update is applied. Where a user function may still raise, the
    updates of its array are applied to a draft, which replaces the array when no draft has failed. The
    steps after that can fail only if the server runs out of memory.

    Each array changes atomically per update, or once for all updates if there was a draft. A concurrent
    reader may see some arrays with their updates and others without.
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
            update.apply_to(update.stored)
        return
    with contextlib.ExitStack() as locks:
        # A global lock order, so that two groups cannot deadlock.
        for stored in sorted(tried.values(), key=id):
            locks.enter_context(stored.lock)
        counts = collections.Counter(id(update.stored) for update in group)
        drafts = {key: stored.draft(with_states=counts[key] > 1) for key, stored in tried.items()}
        for update in group:
            if id(update.stored) in drafts:
                update.apply_to(drafts[id(update.stored)])
        for key, stored in tried.items():
            stored.accept(drafts[key])
    for update in group:
        if id(update.stored) not in drafts:
            update.apply_to(update.stored)
