"""The body of a ``for`` statement, found in the bytecode of the function that runs it."""

from __future__ import annotations

import bisect
import dis
import functools
import sys
import types
from typing import NamedTuple

__all__ = ["LoopBody", "body_of_loop_over_call"]

# AutoGraph carries what these assign from one iteration to the next, and a function that is called in the
# body may read it. Plain local variables are not among them: only the body itself sees those.
_CHANGES_SEEN_BY_OTHERS = frozenset(
    f"{change}_{what}"
    for change in ("STORE", "DELETE")
    for what in ("ATTR", "DEREF", "GLOBAL", "NAME", "SUBSCR", "SLICE")
)


class LoopBody(NamedTuple):
    """Where the body of a loop is in the bytecode of its function.

    Attributes:
        code: The code of the function.
        start: The offset of the ``FOR_ITER`` instruction.
        end: The offset of the first instruction after the loop.
        assigns_only_locals: Whether the body assigns nothing that a function called in it can read.
    """

    code: types.CodeType
    start: int
    end: int
    assigns_only_locals: bool

    def is_running_in(self, frame: types.FrameType) -> bool:
        """Returns whether ``frame``, which runs the function, is inside the body."""
        return self.start < frame.f_lasti < self.end


def body_of_loop_over_call(frame: types.FrameType) -> LoopBody | None:
    """Returns the body of the loop over the result of the call that ``frame`` makes now.

    Returns ``None`` unless the call is all that stands behind ``in``: ``for i in call():``.
    """
    return _body(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=128)
def _body(code: types.CodeType, position: int) -> LoopBody | None:
    instructions = list(dis.get_instructions(code))
    # The position may be that of the call's inline cache, which is no instruction of its own.
    call = bisect.bisect_right([instruction.offset for instruction in instructions], position) - 1
    following = [i for i in instructions[call + 1 :] if i.opname != "EXTENDED_ARG"][:2]
    if [instruction.opname for instruction in following] != ["GET_ITER", "FOR_ITER"]:
        return None
    start, end = following[1].offset, following[1].argval
    # Handlers of exceptions (`except`, `with`) come after all other code of the function.
    handlers = [
        entry.target
        for entry in dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
        if start < entry.start < end
    ]
    first_handler = min(handlers, default=sys.maxsize)
    changes = any(
        instruction.opname in _CHANGES_SEEN_BY_OTHERS
        and (start < instruction.offset < end or instruction.offset >= first_handler)
        for instruction in instructions
    )
    return LoopBody(code, start, end, not changes)
