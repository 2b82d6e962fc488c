"""The state of an optimizer in a checkpoint: each array by its role and by its variable."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.leaf_paths import leaf_paths
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.variables.variable import Variable

__all__ = ["Owner", "RestoredState", "StateEntry", "StatePlace", "state_places", "static_shape"]

Owner: TypeAlias = Variable | int | None
"""The variable that an array of the state is for, or its index; ``None`` if it is for all variables."""

_LOCAL_ONLY = frozenset({"iterations", "learning_rate"})  # state on parameter servers has none


class StatePlace(NamedTuple):
    """The role of one array of an optimizer's state.

    Attributes:
        leaf: Its path in the state for a single variable.
        number: The index of the variable that it is for; ``None`` if it is for all.
    """

    leaf: str
    number: int | None


class StateEntry(NamedTuple):
    """One array of an optimizer's state.

    Attributes:
        leaf: Its path in the state for a single variable.
        owner: The variable that it is for.
        value: The array, or the variable that holds it.
    """

    leaf: str
    owner: Owner
    value: Any


def state_places(state: PyTree, num_variables: int) -> list[StatePlace]:
    """Returns the role of each array of a state that was created for a list of variables.

    >>> import optax
    >>> state = {"iterations": 0, "transformation": optax.adam(0.1).init([0.0, 0.0])}
    >>> [place.leaf for place in state_places(state, 2)][:3]
    ['iterations', '[0]ScaleByAdamState.count', '[0]ScaleByAdamState.mu']
    >>> [place.number for place in state_places(state, 2)]
    [None, None, 0, 1, 0, 1]
    """
    places = []
    for way in leaf_paths(state):
        number, texts = None, []
        for text, node, key in way:
            if number is None and type(node) is list and len(node) == num_variables:
                number = int(key.idx)
            else:
                texts.append(text)
        first = texts[0].removeprefix("['").removesuffix("']")
        texts[0] = "" if first == "transformation" and len(way) > 1 else first
        places.append(StatePlace("".join(texts), number))
    return places


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The state of an optimizer from a checkpoint.

    Attributes:
        shared: Arrays that are for all variables, by role.
        of: Arrays for each variable, by role.

    The arrays may be lazy: still in their files, with only shape and element type known.
    """

    shared: Mapping[str, Any] = field(default_factory=dict)
    of: Mapping[str, Sequence[tuple[Variable | int, Any]]] = field(default_factory=dict)

    def entries(self) -> Iterator[StateEntry]:
        """Yields everything, to be saved again."""
        for leaf, value in self.shared.items():
            yield StateEntry(leaf, None, value)
        for leaf, values in self.of.items():
            for owner, value in values:
                yield StateEntry(leaf, owner, value)

    def replace(self, leaf: str, value: ArrayLike) -> RestoredState:
        """Returns the state with one shared array replaced."""
        if leaf not in self.shared:
            return self
        return RestoredState({**self.shared, leaf: value}, self.of)

    def fitted(
        self,
        places: Sequence[StatePlace],
        initial: Sequence[Any],
        variables: Sequence[Variable],
        optimizer: str,
    ) -> list[Any]:
        """Returns the arrays in the order of an optimizer's state.

        Counts per variable, as parameter servers keep them, become one count: their maximum.

        Args:
            places: The roles of the optimizer's arrays.
            initial: Its initial state; only shapes and element types matter, except for arrays that the
                checkpoint does not have.
            variables: The variables that the optimizer is for.
            optimizer: Its name, for messages.

        Raises:
            InvalidArgumentError: If it is the state of another optimizer, or of other variables.
        """
        check_leaves({*self.shared, *self.of}, {p.leaf for p in places}, optimizer, _LOCAL_ONLY)
        self._check_variables(places, variables, optimizer)
        values = [
            self._value(place, first, variables)
            for place, first in zip(places, initial, strict=True)
        ]
        for place, value, first in zip(places, values, initial, strict=True):
            check_array(place.leaf, value, first, optimizer)
        return values

    def _check_variables(
        self, places: Sequence[StatePlace], variables: Sequence[Variable], optimizer: str
    ) -> None:
        missing = {
            variables[place.number].name
            for place in places
            if place.number is not None
            and self._of_variable(place.leaf, place.number, variables) is None
        }
        if missing:
            raise InvalidArgumentError(
                f"{optimizer} has state for the variables {[v.name for v in variables]}, but the "
                f"checkpoint has none for {sorted(missing)}. Give the optimizer, and the Checkpoint, the "
                "variables that were saved."
            )

    def _of_variable(self, leaf: str, number: int, variables: Sequence[Variable]) -> Any:
        found = None
        for owner, value in self.of.get(leaf, ()):
            if owner is variables[number]:
                return value
            if isinstance(owner, int) and owner == number:
                found = value
        return found

    def _value(self, place: StatePlace, initial: ArrayLike, variables: Sequence[Variable]) -> Any:
        if place.number is not None:
            return self._of_variable(place.leaf, place.number, variables)
        if place.leaf in self.shared:
            return self.shared[place.leaf]
        if place.leaf in self.of:
            return merge_values([value for _, value in self.of[place.leaf]])
        if place.leaf == "iterations":
            counts = [leaf for leaf in self.of if leaf.endswith(".count")]
            values = [value for leaf in counts for _, value in self.of[leaf]]
            return merge_values([np.zeros((), np.int32), *values])
        return initial


_ADVICE = "Create the Optimizer with the transformation that it was saved with."


def check_leaves(
    saved: Collection[str], wanted: Collection[str], optimizer: str, may_differ: Collection[str]
) -> None:
    """Checks that a saved state has the same roles as an optimizer's state.

    Args:
        saved: The roles of the saved arrays.
        wanted: The roles of the optimizer's arrays.
        optimizer: Its name, for messages.
        may_differ: Roles that only one of them may have.

    Raises:
        InvalidArgumentError: If the roles differ.
    """
    if (set(saved) ^ set(wanted)) - set(may_differ):
        raise InvalidArgumentError(
            f"{optimizer} has the state {_leaves(wanted)}, but the checkpoint has {_leaves(saved)}, which "
            f"is the state of another optimizer. {_ADVICE}"
        )


def check_array(leaf: str, saved: Any, wanted: Any, optimizer: str) -> None:
    """Checks the shape and element type of a saved array.

    Raises:
        InvalidArgumentError: If they differ from the optimizer's.
    """
    dtypes = {wanted.dtype.name, jax.dtypes.canonicalize_dtype(wanted.dtype).name}
    if saved.dtype.name not in dtypes or tuple(saved.shape) != tuple(wanted.shape):
        raise InvalidArgumentError(
            f"{optimizer} has {leaf} of {wanted.dtype.name}{list(wanted.shape)}, but the checkpoint has "
            f"{saved.dtype.name}{list(saved.shape)}. Create the variables as they were saved."
        )


def merge_values(values: Sequence[Any]) -> Any:
    """Merges values of several variables into one: the maximum of integers, the mean of anything else.

    If the values are still in their files, returns the first: its shape and element type are those of all.
    """
    if not all(isinstance(value, np.ndarray) for value in values):
        return values[0]
    stacked = np.stack(values)
    dtype = stacked.dtype
    is_integer = np.issubdtype(dtype, np.integer) or dtype == np.bool_
    return (stacked.max(axis=0) if is_integer else stacked.mean(axis=0)).astype(dtype)


def _leaves(names: Any) -> list[str]:
    return list(dict.fromkeys(names)) if isinstance(names, list) else sorted(set(names))


def static_shape(variable: Variable) -> tuple[int, ...]:
    """Returns the shape of a variable's value."""
    return tuple(int(dim or 0) for dim in variable.shape)
