"""``LocalState``: the state of an optimizer as a checkpoint sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.server.server_optimizer import StateLeaf
from stratagem._src.variables.variable import Variable

__all__ = ["LocalState", "check_leaves", "static_shape"]


@dataclass(frozen=True, slots=True)
class LocalState:
    """The state that an optimizer keeps for variables of this process.

    Attributes:
        leaves: What each array of it is; ``None`` if it comes from a checkpoint that does not say.
        values: The arrays, or the variables that hold them.
        variables: The variables that it is for, in the optimizer's order; ``None`` for one that is not
            known, and for all if none is.
    """

    leaves: tuple[str, ...] | None
    values: tuple[Any, ...]
    variables: tuple[Variable | None, ...] | None

    def counted(self, wanted: Sequence[str]) -> LocalState:
        """Returns the same state; one from before updates were counted begins to count them.

        Args:
            wanted: What the optimizer's state consists of.
        """
        missing = (
            len(self.values) == len(wanted) - 1
            if self.leaves is None
            else "iterations" not in self.leaves
        )
        if not missing or "iterations" not in wanted:
            return self
        place = wanted.index("iterations")

        def insert(before: tuple[Any, ...], new: Any) -> tuple[Any, ...]:
            return (*before[:place], new, *before[place:])

        leaves = None if self.leaves is None else insert(self.leaves, "iterations")
        return LocalState(leaves, insert(self.values, np.int32(0)), self.variables)

    def replace(self, leaf: str, value: Any) -> LocalState:
        """Returns the same state with another array of a name, if it has one of it."""
        if self.leaves is None or leaf not in self.leaves:
            return self
        pairs = zip(self.leaves, self.values, strict=True)
        values = tuple(value if name == leaf else old for name, old in pairs)
        return LocalState(self.leaves, values, self.variables)

    def check(
        self, wanted: Sequence[StateLeaf], variables: Sequence[Variable], optimizer: str
    ) -> None:
        """Checks that it is the state of an optimizer for some variables.

        Args:
            wanted: What the optimizer's state consists of.
            variables: The variables that the optimizer is for.
            optimizer: Its name, for messages.

        Raises:
            InvalidArgumentError: If it is that of another optimizer, or for other variables.
        """
        own = self.variables
        if own is not None and (
            len(own) != len(variables)
            or any(a is not None and a is not b for a, b in zip(own, variables, strict=True))
        ):
            saved = ["another" if v is None else v.name for v in own]
            raise InvalidArgumentError(
                f"{optimizer} has state for the variables {[v.name for v in variables]}, but the "
                f"checkpoint's is for {saved}. Give the optimizer the same variables in the same order."
            )
        found = [(tuple(value.shape), value.dtype.name) for value in self.values]
        check_leaves(self.leaves, found, wanted, optimizer)


def check_leaves(
    names: Sequence[str] | None,
    found: Sequence[tuple[tuple[int, ...], str]],
    wanted: Sequence[StateLeaf],
    optimizer: str,
) -> None:
    """Checks the arrays of an optimizer's state.

    Args:
        names: What each array is, if that is known.
        found: Shape and element type of each.
        wanted: What they must be.
        optimizer: Its name, for messages.

    Raises:
        InvalidArgumentError: If they are those of another optimizer.
    """
    wanted_names = [leaf.name for leaf in wanted]
    if (names is not None and list(names) != wanted_names) or len(found) != len(wanted):
        what = f"{len(found)} arrays" if names is None else list(names)
        raise InvalidArgumentError(
            f"{optimizer} has the state {wanted_names}, but the checkpoint has {what}, which is that of "
            "another optimizer. Make the Optimizer from the transformation it was saved with."
        )
    for leaf, (shape, dtype) in zip(wanted, found, strict=True):
        dtypes = {leaf.dtype.name, jax.dtypes.canonicalize_dtype(leaf.dtype).name}
        if dtype not in dtypes or shape != leaf.shape:
            raise InvalidArgumentError(
                f"{optimizer} has {leaf.name} of {leaf.dtype.name}{list(leaf.shape)}, but the checkpoint "
                f"has {dtype}{list(shape)}. Create the variables as they were saved."
            )


def static_shape(variable: Variable) -> tuple[int, ...]:
    """Returns the shape of a variable's value."""
    return tuple(int(dim or 0) for dim in variable.shape)
