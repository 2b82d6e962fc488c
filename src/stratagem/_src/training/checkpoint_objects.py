"""The names of what a checkpoint saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.training.metrics.metric import Metric
from stratagem._src.training.optimizer import Optimizer
from stratagem._src.variables.place_names import place_name
from stratagem._src.variables.stand_ins import held_variables, is_variable, variable_of
from stratagem._src.variables.variable import Variable

__all__ = ["CheckpointObjects", "named_objects"]


class CheckpointObjects(NamedTuple):
    """Variables and optimizers by their names."""

    variables: dict[str, Variable]
    optimizers: dict[str, Optimizer]

    def name_of(self, variable: Variable | None) -> str | None:
        """Returns the name of a variable, if it is among these."""
        return next((name for name, v in self.variables.items() if v is variable), None)


def named_objects(objects: Mapping[str, Any]) -> CheckpointObjects:
    """Returns the variables and optimizers in a structure, with the ways to them as names.

    Of a metric they are its variables.

    >>> import stratagem as sg
    >>> list(named_objects({"model": {"w": sg.Variable(1.0), "b": sg.Variable(0.0)}}).variables)
    ['model/b', 'model/w']

    Raises:
        InvalidArgumentError: If there is something else, or two of them have the same name.
    """
    opened = jax.tree.map(_open, dict(objects), is_leaf=_is_object)
    leaves = jax.tree_util.tree_leaves_with_path(opened, is_leaf=_is_object)
    found: dict[str, Variable | Optimizer] = {}
    ways: dict[str, str] = {}
    for path, leaf in leaves:
        name = place_name(path)
        if not isinstance(leaf, (Variable, Optimizer)):
            raise InvalidArgumentError(
                "A Checkpoint holds variables, Optimizers, metrics and Keras objects, got "
                f"{type(leaf).__name__} for {name!r}.{_advice(leaf)}"
            )
        way = jax.tree_util.keystr(path)
        if name in found:
            raise InvalidArgumentError(
                f"Everything in a Checkpoint needs a name of its own, got {name!r} for both "
                f"{ways[name]} and {way}. Rename one."
            )
        found[name], ways[name] = leaf, way
    optimizers = {name: leaf for name, leaf in found.items() if isinstance(leaf, Optimizer)}
    for name in found:
        for optimizer in optimizers:
            if name.startswith(f"{optimizer}/"):
                raise InvalidArgumentError(
                    f"Names in a Checkpoint that begin with that of an Optimizer are its state's, got "
                    f"{ways[name]} beside the Optimizer {ways[optimizer]}. Rename one."
                )
    variables = {name: leaf for name, leaf in found.items() if isinstance(leaf, Variable)}
    return CheckpointObjects(variables, optimizers)


def _advice(leaf: Any) -> str:
    if hasattr(leaf, "get_state") and hasattr(leaf, "set_state"):
        return (
            " The place of an iterator is the JSON-able value of iterator.get_state(): write it into a "
            "file beside the checkpoint, and give it back by iterator.set_state()."
        )
    return " Of an object of a class of your own give vars(object)."


def _is_object(leaf: Any) -> bool:
    return isinstance(leaf, (Optimizer, Metric)) or is_variable(leaf)


def _open(leaf: Any) -> Any:
    """Returns the variables of what holds some, or stands for one."""
    if isinstance(leaf, Metric):
        return leaf.named_variables
    held = held_variables(leaf)
    return variable_of(leaf) if held is None else held
