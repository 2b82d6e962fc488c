"""Flax nnx modules in steps: what they change in place is lost, or belongs to no replica."""

from __future__ import annotations

import logging
import sys
from typing import Any

import jax

from stratagem._src.core.structures import ValueLeaf
from stratagem._src.core.types import PyTree

__all__ = ["ModuleArguments", "add_flax_hint"]

_logger = logging.getLogger("stratagem")
_warned: list[str] = []

_HINT = (
    "stratagem: a step must not change a Flax module, or an nnx.Optimizer, that it captured: every replica "
    "would change it. Create variables from nnx.split(module) in strategy.scope(), call "
    "nnx.merge(definition, variables, copy=True) in the step, and update them with sg.train.Optimizer."
)


def add_flax_hint(error: BaseException) -> None:
    """Adds a note to flax's error about a module of another trace level; others stay as they are."""
    if "flax.nnx" not in sys.modules or "different trace level" not in str(error):
        return
    if _HINT not in getattr(error, "__notes__", ()):
        error.add_note(_HINT)


class ModuleArguments:
    """The nnx variables in the arguments of a step, to find those that it changes in vain.

    A step gets copies of modules, since they are pytrees. What it changes in a copy is discarded, as in
    ``jax.jit``, unless it returns the new value.

    Args:
        args: The arguments, as the step gets them.
    """

    def __init__(self, args: PyTree) -> None:
        self._before = [(v, v.get_raw_value()) for v in _nnx_variables(args)]

    def warn_of_discarded_changes(self, result: PyTree) -> None:
        """Logs once that the step changed a module, and that the change is discarded."""
        changed = [v for v, value in self._before if v.get_raw_value() is not value]
        if not changed or _warned:
            return
        returned = set(map(id, jax.tree.leaves(result, is_leaf=_is_value)))
        lost = [v for v in changed if id(v.get_raw_value()) not in returned]
        if not lost:
            return
        _warned.append(type(lost[0]).__name__)
        _logger.warning(
            "A step changed %d nnx variable(s) of a Flax module or nnx.Optimizer that it got as an "
            "argument (the first is a %s of shape %s) and did not return the new values. The changes are "
            "discarded, because a step works on copies of its arguments, as in jax.jit. Return "
            "nnx.state(module) and nnx.update the module with it after the step; or keep parameters in "
            "variables.",
            len(lost),
            type(lost[0]).__name__,
            getattr(lost[0].get_raw_value(), "shape", ()),
        )


def _nnx_variables(args: PyTree) -> list[Any]:
    variable: Any = getattr(sys.modules.get("flax.nnx"), "Variable", None)
    if not hasattr(variable, "get_raw_value"):
        return []
    leaves = jax.tree.leaves(args, is_leaf=lambda x: isinstance(x, variable) or _is_value(x))
    return [leaf for leaf in leaves if isinstance(leaf, variable)]


def _is_value(x: PyTree) -> bool:
    """Returns whether ``x`` is a value of the strategy; among several processes it cannot be opened."""
    return isinstance(x, ValueLeaf)
