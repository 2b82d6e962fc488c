"""Reads the text of a compiled program: its collectives, and what runs while they are under way."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z\-]+)\((.*)$")
_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(-start)?"
)
_ARRAY = re.compile(r"\b(pred|[su]8|[su]32|bf16|f16|f32|f64)\[([\d,]*)\]")
_CALLS = re.compile(r"(?:calls|body|to_apply)=%?([\w.\-]+)")
_IDENTITY = re.compile(r'(?:channel_id=|chain_id=")(\d+)')
_KERNELS = ("fusion", "dot", "convolution", "custom-call", "while")


@dataclass(frozen=True)
class Collective:
    """A collective of a program.

    Attributes:
        kind: For example ``"all-reduce"``.
        dtype: The type on the wire.
        num_bytes: The size of the full arrays: results, or operands of a reduce-scatter.
        in_loop: Whether a loop repeats it.
        hidden_by: How many kernels run while it is under way; 0 if the program waits for it.
    """

    kind: str
    dtype: str
    num_bytes: int
    in_loop: bool
    hidden_by: int


def collectives(text: str) -> list[Collective]:
    """Returns the collectives of a compiled program.

    On TPU a collective can be a part of several fusions, one after the other: it begins in the first and
    ends in the last. They have its channel and chain in common.
    """
    computations = _computations(text)
    in_loops = _in_loops(computations)
    found: dict[tuple[str, ...], Collective] = {}
    for name, lines in computations.items():
        for position, line in enumerate(lines):
            match = _INSTRUCTION.match(line)
            collective = match and _COLLECTIVE.fullmatch(match[3])
            if not match or not collective:
                continue
            kind = collective[1]
            is_part = "chain_id" in line
            key = (
                (kind, match[2].partition("{")[0], *_IDENTITY.findall(line))
                if is_part
                else (kind, match[1])
            )
            hidden_by = _hidden_by(lines, position, match[1]) if collective[2] else 0
            if key in found:
                hidden_by = found[key].hidden_by + 1
            dtype, size = _payload(
                match[2], lists_operands=bool(collective[2]) and kind != "all-reduce"
            )
            if kind == "reduce-scatter" and not collective[2]:
                size *= _group_size(line)
            found[key] = Collective(kind, dtype, size, name in in_loops, hidden_by)
    return list(found.values())


def payload(text: str) -> dict[str, int]:
    """Returns the bytes of all collectives, by kind, dtype and whether they are in a loop."""
    total: Counter[str] = Counter()
    for collective in collectives(text):
        where = " in loop" if collective.in_loop else ""
        total[f"{collective.kind} {collective.dtype}{where}"] += collective.num_bytes
    return dict(total)


def exposed(text: str, at_least: int = 1024) -> list[Collective]:
    """Returns the collectives of some size that the program waits for."""
    return [c for c in collectives(text) if not c.hidden_by and c.num_bytes >= at_least]


def _computations(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        match = _COMPUTATION.match(line)
        if match is not None:
            lines = found.setdefault(match[1], [])
        elif line.startswith("}"):
            lines = []
        else:
            lines.append(line)
    return found


def _in_loops(computations: dict[str, list[str]]) -> set[str]:
    text = {name: "\n".join(lines) for name, lines in computations.items()}
    pending = {body for lines in text.values() for body in re.findall(r"body=%?([\w.\-]+)", lines)}
    found: set[str] = set()
    while pending:
        name = pending.pop()
        found.add(name)
        pending |= set(_CALLS.findall(text.get(name, ""))) - found
    return found


def _payload(result: str, *, lists_operands: bool) -> tuple[str, int]:
    """Returns the dtype and the size of a result; a start may list its operands before its results."""
    arrays = _ARRAY.findall(result)
    if lists_operands:
        half = len(arrays) // 2
        arrays = max(arrays[:half], arrays[half:], key=lambda side: sum(map(_size, side)))
    dtypes = sorted({dtype for dtype, _ in arrays})
    return "+".join(dtypes), sum(map(_size, arrays))


def _group_size(line: str) -> int:
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed is not None:
        return listed[1].count(",") + 1
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    assert counted is not None, line
    return int(counted[1])


def _size(array: tuple[str, str]) -> int:
    dtype, shape = array
    return _BYTES[dtype] * math.prod(int(size) for size in shape.split(",") if size)


def _hidden_by(lines: list[str], start: int, name: str) -> int:
    kernels = 0
    for line in lines[start + 1 :]:
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        if match[3].endswith("-done") and re.match(rf"%?{re.escape(name)}\b(?![.\-])", match[4]):
            return kernels
        kernels += match[3] in _KERNELS
    return 0


def memory(compiled: Any) -> dict[str, int]:
    """Returns the temporary memory of a program, and the bytes of donated arguments that it reuses."""
    stats = compiled.memory_analysis()
    return {"temporary": stats.temp_size_in_bytes, "donated": stats.alias_size_in_bytes}
