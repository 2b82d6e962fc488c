"""Dead-code elimination: the equations that some values depend on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from stratagem._src.core.types import Atom, Equation
from stratagem._src.jaxpr.inline import FlatEquation, Operand

__all__ = ["eliminate_dead_code", "equations_for"]

_AnyEquation = TypeVar("_AnyEquation")


def eliminate_dead_code(
    equations: Sequence[FlatEquation],
    outputs: Iterable[Operand],
    keep: Callable[[Equation], bool] = lambda eqn: False,
) -> list[FlatEquation]:
    """Returns the inlined equations that outputs depend on, and those that ``keep`` returns true for."""
    return _live(
        equations,
        outputs,
        uses=lambda equation: equation.operands,
        defines=lambda equation: equation.results,
        keep=lambda equation: keep(equation.eqn),
    )


def equations_for(
    equations: Sequence[Equation],
    atoms: Iterable[Atom],
    keep: Callable[[Equation], bool] = lambda eqn: False,
) -> list[Equation]:
    """Returns the equations of a jaxpr that compute ``atoms``, and those that ``keep`` returns true for."""
    # By identity: a literal with an array in it cannot be hashed.
    return _live(
        equations,
        map(id, atoms),
        uses=lambda eqn: map(id, eqn.invars),
        defines=lambda eqn: map(id, eqn.outvars),
        keep=keep,
    )


def _live(
    equations: Sequence[_AnyEquation],
    outputs: Iterable[Hashable],
    *,
    uses: Callable[[_AnyEquation], Iterable[Hashable]],
    defines: Callable[[_AnyEquation], Iterable[Hashable]],
    keep: Callable[[_AnyEquation], bool],
) -> list[_AnyEquation]:
    """Goes backwards from the outputs: equations stand after those that compute their operands."""
    needed = set(outputs)
    kept = []
    for equation in reversed(equations):
        # An equation with effects is dead like any other unless `keep` says otherwise: a host callback
        # with unused results would not run.
        if not needed.isdisjoint(defines(equation)) or keep(equation):
            needed.update(uses(equation))
            kept.append(equation)
    return kept[::-1]
