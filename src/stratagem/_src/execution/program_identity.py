"""The identity of a multi-process program, by which workers check that they launch the same one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from stratagem._src.core.types import Jaxpr
from stratagem._src.execution.traced_function import TracedFunction
from stratagem._src.mesh.process_monitor import ProgramIdentity, ProgramLine

__all__ = ["identify_program"]

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def identify_program(traced: TracedFunction, used: Sequence[int]) -> ProgramIdentity | None:
    """Returns what identifies a program in all processes, or ``None`` if each can run it alone.

    Args:
        traced: The traced function.
        used: The positions of the variables that the program uses.
    """
    if traced.group is None or not traced.group.spans_processes:
        return None
    jaxpr, variables, inputs = traced.jaxpr, traced.variables, traced.inputs
    # Without unused variables, which may differ between processes.
    kept = [*(jaxpr.invars[i] for i in used), *jaxpr.invars[len(variables) :]]
    jaxpr = jaxpr.replace(invars=kept, debug_info=jaxpr.debug_info.with_unknown_names())
    text = str(jaxpr)
    split = [variables[i].program_shard_dim for i in used]
    if "shard_map" not in text and set(split) <= {None} and not inputs.groups():
        return None
    avals = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in inputs.avals())
    # The text of a jaxpr contains addresses of functions, which differ between processes.
    content = f"{_ADDRESS.sub('', text)} {split}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return ProgramIdentity(f"{traced.name}({avals})", digest, lambda: _listing(jaxpr, split))


def _listing(jaxpr: Jaxpr, split: Sequence[int | None]) -> list[ProgramLine]:
    """Returns the text of a program line by line, with source locations in the user's code."""
    compared = [_ADDRESS.sub("", line) for line in str(jaxpr).splitlines()]
    shown = jaxpr.pretty_print(source_info=True).splitlines()
    if len(shown) != len(compared):
        shown = compared
    lines = [ProgramLine(*pair) for pair in zip(compared, shown, strict=True)]
    variables = f"variables sharded along the dimensions {list(split)}"
    return [*lines, ProgramLine(variables, variables)]
