"""Sums the stacked results of a ``lax.scan`` over the replicas inside the loop, one layer at a time.

The gradients of scanned layers leave the backward loop as stacks of rows, one for each layer. Summed after
the loop, they are all sent at its end, while nothing computes. In the loop the gradients of one layer
travel while the next is computed; those of a reduce-scatter leave it as shards, and those that are sent in
a narrower dtype in that one. Each element is the same sum of the same addends.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stratagem._src.core.types import Atom, Equation, Jaxpr
from stratagem._src.jax_compat.primitives import (
    CONVERT_DTYPE,
    DIV,
    JIT,
    MUL,
    PSUM,
    REDUCE_SCATTER,
    SCAN,
    is_dropped,
    scan_counts,
)
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.jaxpr.walk import map_inner_jaxprs

__all__ = ["sum_inside_scans"]

_MIN_BYTES = 2**20
"""What a loop must send in each turn. The latency of an all-reduce between eight GPUs of a host is that of
sending a few megabytes: small ones, one for each row, would take longer than one of all rows."""


@dataclass(frozen=True)
class _Rule:
    """Which sums move.

    Attributes:
        sums: The names of their primitives.
        min_bytes: How many bytes the sums of a loop have for each row, at least.
    """

    sums: frozenset[str]
    min_bytes: int


def sum_inside_scans(
    jaxpr: Jaxpr, sums: Iterable[str] = (PSUM, REDUCE_SCATTER), min_bytes: int = _MIN_BYTES
) -> Jaxpr:
    """Returns ``jaxpr`` with sums of stacked results inside the loops that compute the rows.

    A sum moves if nothing else uses the unsummed stack. Conversions and scalings by a number between loop
    and sum move with it.
    Inputs and outputs stay the same variables.

    Args:
        jaxpr: The jaxpr, with a ``shard_map`` somewhere in it.
        sums: The names of the primitives of the sums that move: ``psum`` and ``reduce_scatter``.
        min_bytes: How many bytes the sums of a loop have for each row, at least.
    """
    return _rewrite(jaxpr, _Rule(frozenset(sums), min_bytes))


def _rewrite(jaxpr: Jaxpr, rule: _Rule) -> Jaxpr:
    eqns = [map_inner_jaxprs(eqn, functools.partial(_rewrite_body, rule)) for eqn in jaxpr.eqns]
    moves = _find_moves(eqns, jaxpr.outvars, rule)
    if moves:
        eqns = _moved(eqns, moves, rule)
    is_same = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if is_same else jaxpr.replace(eqns=eqns)


def _rewrite_body(rule: _Rule, name: str, position: int | None, body: Jaxpr) -> Jaxpr:
    jaxpr = _rewrite(body.jaxpr, rule)
    return body if jaxpr is body.jaxpr else jax_core().ClosedJaxpr(jaxpr, body.consts)


@dataclass(frozen=True)
class _Move:
    """A sum that moves into the equation that computes its operand.

    Attributes:
        output: Which result of that equation is summed.
        chain: Where the sum and what comes before it stand now, in the order in which they compute.
    """

    output: int
    chain: tuple[int, ...]


def _find_moves(
    eqns: Sequence[Equation], outvars: Sequence[Atom], rule: _Rule
) -> dict[int, list[_Move]]:
    """Returns the sums that can move, by the place of the equation that they move into."""
    uses = Counter(id(atom) for eqn in eqns for atom in eqn.invars)
    uses.update(map(id, outvars))
    makers: dict[int, tuple[int, int]] = {}
    found: dict[int, list[_Move]] = {}
    for place, eqn in enumerate(eqns):
        if eqn.primitive.name in rule.sums and len(eqn.invars) == 1:
            chain, atom = [place], eqn.invars[0]
            while uses[id(atom)] == 1 and id(atom) in makers:
                maker, output = makers[id(atom)]
                if not _is_elementwise(eqns[maker]):
                    if _is_stacked(eqns[maker], output, eqn):
                        found.setdefault(maker, []).append(_Move(output, (*reversed(chain),)))
                    break
                chain.append(maker)
                atom = eqns[maker].invars[0]
        makers.update((id(v), (place, i)) for i, v in enumerate(eqn.outvars) if not is_dropped(v))
    return {
        maker: moves
        for maker, moves in found.items()
        if sum(_row_bytes(eqns[move.chain[-1]].invars[0]) for move in moves) >= rule.min_bytes
    }


def _is_elementwise(eqn: Equation) -> bool:
    """Returns whether an equation converts its first operand, or scales it by a number."""
    if eqn.primitive.name == CONVERT_DTYPE:
        sharding = eqn.params.get("sharding")
        return sharding is None or not any(sharding.spec)
    numbers = eqn.invars[1:]
    return eqn.primitive.name in (DIV, MUL) and all(
        isinstance(number, jax_core().Literal) and not number.aval.shape for number in numbers
    )


def _is_stacked(eqn: Equation, output: int, summed: Equation) -> bool:
    """Returns whether a result is a stack of rows that a loop computes, and each can be summed alone."""
    if eqn.primitive.name == SCAN:
        # The rows are divided between the replicas if their own dimension is the one that is scattered.
        divides_rows = summed.params.get("scatter_dimension") == 0
        row = eqn.params["jaxpr"].jaxpr.outvars[output]
        _, carried = scan_counts(eqn.params)
        is_row = output >= carried and not isinstance(row, jax_core().Literal)
        return is_row and not divides_rows
    if eqn.primitive.name not in JIT:
        return False
    called = eqn.params["jaxpr"].jaxpr
    atom = called.outvars[output]
    makers = {id(v): (e, i) for e in called.eqns for i, v in enumerate(e.outvars)}
    while id(atom) in makers and _is_elementwise(makers[id(atom)][0]):
        atom = makers[id(atom)][0].invars[0]
    return id(atom) in makers and _is_stacked(*makers[id(atom)], summed)


def _row_bytes(stack: Atom) -> int:
    _, *row = stack.aval.shape
    return math.prod(row) * int(stack.aval.dtype.itemsize)


def _moved(
    eqns: Sequence[Equation], moves: Mapping[int, Sequence[_Move]], rule: _Rule
) -> list[Equation]:
    """Returns equations of which some are inside of others."""
    gone = {place for of_one in moves.values() for move in of_one for place in move.chain}
    return [
        _with_sums(eqn, moves[place], eqns, rule) if place in moves else eqn
        for place, eqn in enumerate(eqns)
        if place not in gone
    ]


def _with_sums(
    eqn: Equation, moves: Sequence[_Move], eqns: Sequence[Equation], rule: _Rule
) -> Equation:
    """Returns a loop or call that computes summed results."""
    closed = eqn.params["jaxpr"]
    body, is_loop = closed.jaxpr, eqn.primitive.name == SCAN
    added: list[Equation] = []
    outvars, results = list(body.outvars), list(eqn.outvars)
    for move in moves:
        atom = outvars[move.output]
        for place in move.chain:
            inside = _inside(eqns[place], atom, is_loop=is_loop)
            added.append(inside)
            [atom] = inside.outvars
        outvars[move.output] = atom
        results[move.output] = eqns[move.chain[-1]].outvars[0]
    effects = {effect for inside in added for effect in inside.effects}
    body = body.replace(eqns=[*body.eqns, *added], outvars=outvars, effects=body.effects | effects)
    if not is_loop:
        # Its own loop is one call further inside.
        body = _rewrite(body, rule)
    params = {**eqn.params, "jaxpr": jax_core().ClosedJaxpr(body, closed.consts)}
    return eqn.replace(outvars=results, params=params, effects=eqn.effects | effects)


def _inside(eqn: Equation, atom: Atom, *, is_loop: bool) -> Equation:
    """Returns an equation of a chain inside a loop or call; in a loop, for one row."""
    outside = eqn.outvars[0].aval
    shape = outside.shape[1:] if is_loop else outside.shape
    # From the value inside: an abstract value also knows the mesh, where the value has another rank.
    aval = atom.aval.update(shape=shape, dtype=outside.dtype, weak_type=outside.weak_type)
    params = eqn.params
    if is_loop and eqn.primitive.name == REDUCE_SCATTER:
        params = {**params, "scatter_dimension": params["scatter_dimension"] - 1}
    return eqn.replace(
        invars=[atom, *eqn.invars[1:]], outvars=[jax_core().Var(aval)], params=params
    )
