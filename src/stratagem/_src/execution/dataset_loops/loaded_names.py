"""What a function's code says about names: which globals it reads, which names a loop of it changes."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator

__all__ = ["changing_names", "global_names"]


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _with_inner(const)


@functools.lru_cache(maxsize=1024)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Returns the names of the globals that the code, or code inside it, reads."""
    names = {
        instruction.argval
        for inner in _with_inner(code)
        for instruction in dis.get_instructions(inner)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return tuple(sorted(names))


@functools.lru_cache(maxsize=1024)
def changing_names(code: types.CodeType) -> frozenset[str]:
    """Returns the names shared with inner functions that probably change while the code runs.

    Those are names that are set more than once, in a loop, or by an inner function.

    >>> def epoch():
    ...     total, constant = 0, 3
    ...     for i in range(3):
    ...         total += 1
    ...         step = lambda: total + i + constant
    >>> sorted(changing_names(epoch.__code__))
    ['i', 'total']
    """
    stores: dict[str, list[int]] = {}
    loops: list[tuple[int, int]] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_DEREF":
            stores.setdefault(instruction.argval, []).append(instruction.offset)
        elif "JUMP" in instruction.opname and isinstance(instruction.argval, int):
            loops.append((instruction.argval, instruction.offset))
    changing = {
        name
        for name, offsets in stores.items()
        if len(offsets) > 1
        or name in code.co_freevars
        or any(start <= offsets[0] <= end for start, end in loops)
    }
    for inner in _with_inner(code):
        if inner is not code:
            changing |= {
                instruction.argval
                for instruction in dis.get_instructions(inner)
                if instruction.opname == "STORE_DEREF" and instruction.argval in inner.co_freevars
            }
    return frozenset(changing)
