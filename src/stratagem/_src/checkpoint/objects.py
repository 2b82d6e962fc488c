"""The names of what a checkpoint saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.checkpoint.format.tree_metadata import Key, array_key
from stratagem._src.checkpoint.nnx_objects import Live, is_nnx_object, nnx_parts
from stratagem._src.checkpoint.saved_values import (
    IteratorPlace,
    PlainArray,
    PlainNumber,
    RandomKey,
    SavedValue,
    SavedVariable,
)
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.training.metrics.metric import Metric
from stratagem._src.training.optimizer import Optimizer
from stratagem._src.variables.place_names import place_name
from stratagem._src.variables.stand_ins import (
    NotBuiltError,
    held_variables,
    is_variable,
    variable_of,
)
from stratagem._src.variables.variable import Variable

__all__ = ["CheckpointObjects", "named_objects"]

COUNTER = "save_counter"

Keys = tuple[Key, ...]


class CheckpointObjects(NamedTuple):
    """What a Checkpoint holds, by name.

    Attributes:
        variables: The variables, wherever they are.
        plain: Arrays and numbers.
        optimizers: The optimizers.
        unbuilt: Keras objects that have not got their variables yet.
        keys: The way to each in the structure.
        structure: Returns the structure, with the arrays and numbers that were put in places of others.
    """

    variables: dict[str, Variable]
    plain: dict[str, SavedValue]
    optimizers: dict[str, Optimizer]
    unbuilt: dict[str, Any]
    keys: dict[str, Keys]
    structure: Callable[[], Mapping[str, Any]]

    @property
    def remote(self) -> dict[str, RemoteVariable]:
        """The variables on parameter servers."""
        return {name: v for name, v in self.variables.items() if isinstance(v, RemoteVariable)}

    @property
    def local(self) -> dict[str, SavedValue]:
        """What is saved of this process, optimizers apart."""
        of_variables: dict[str, SavedValue] = {
            name: SavedVariable(v)
            for name, v in self.variables.items()
            if not isinstance(v, RemoteVariable)
        }
        return of_variables | self.plain

    def name_of(self, variable: Variable | None) -> str | None:
        """Returns the name of a variable, if it is among these."""
        return next((name for name, v in self.variables.items() if v is variable), None)


def named_objects(objects: Mapping[str, Any], *, allows_unbuilt: bool = False) -> CheckpointObjects:
    """Returns what there is in a structure, with the ways to them as names.

    Of a metric they are its variables.

    >>> import stratagem as sg
    >>> model = {"w": sg.Variable(1.0), "b": sg.Variable(0.0)}
    >>> list(named_objects({"model": model, "epoch": 3}).keys)
    ['epoch', 'model/b', 'model/w']

    Args:
        objects: The structure.
        allows_unbuilt: Whether Keras objects may be there that get their variables later.

    Raises:
        InvalidArgumentError: If there is something else, or two of them have the same name.
        NotBuiltError: If a Keras object has not got its variables yet, and that is not allowed.
    """
    ways, structure = jax.tree_util.tree_flatten_with_path(dict(objects), is_leaf=_is_object)
    leaves = [leaf for _, leaf in ways]
    found = CheckpointObjects({}, {}, {}, {}, {}, lambda: jax.tree.unflatten(structure, leaves))
    shown: dict[str, str] = {}

    def replacing(position: int) -> Callable[[Any], None]:
        def put(value: Any) -> None:
            leaves[position] = value

        return put

    for position, (path, leaf) in enumerate(ways):
        try:
            parts = list(_opened(leaf, replacing(position)))
        except NotBuiltError:
            if not allows_unbuilt:
                raise
            found.unbuilt[place_name(path)] = leaf
            continue
        for inner, part, put in parts:
            whole = (*path, *inner)
            name, keys = place_name(whole), _keys(whole)
            way = jax.tree_util.keystr(whole)
            _check_name(name, way, shown)
            shown[name] = way
            found.keys[name] = keys
            if isinstance(part, Variable):
                found.variables[name] = part
            elif isinstance(part, Optimizer):
                found.optimizers[name] = part
            else:
                found.plain[name] = _plain(name, part, put)
    _check_states(found, shown)
    _check_array_keys(found, shown)
    return found


def _check_name(name: str, way: str, shown: Mapping[str, str]) -> None:
    if name in shown:
        raise InvalidArgumentError(
            f"Everything in a Checkpoint needs a name of its own, got {name!r} for both {shown[name]} "
            f"and {way}. Rename one."
        )
    if name.partition("/")[0] == COUNTER:
        raise InvalidArgumentError(
            f"{COUNTER!r} is the Checkpoint's own count of saves, got {way}. Rename the object."
        )
    is_of_worker = name.startswith("@") and name[1:].partition("/")[0].isdigit()
    try:
        name.encode()
    except UnicodeEncodeError:
        is_of_worker = True
    if is_of_worker:
        raise InvalidArgumentError(
            "Names in a Checkpoint are text that can be written as UTF-8, and those that begin with '@' "
            f"and a number are of workers, got {way}. Rename the object."
        )


def _check_states(found: CheckpointObjects, shown: Mapping[str, str]) -> None:
    for name in found.keys:
        for optimizer in found.optimizers:
            if name.startswith(f"{optimizer}/"):
                raise InvalidArgumentError(
                    "Names in a Checkpoint that begin with that of an Optimizer are its state's, got "
                    f"{shown[name]} beside the Optimizer {shown[optimizer]}. Rename one."
                )


def _check_array_keys(found: CheckpointObjects, shown: Mapping[str, str]) -> None:
    names: dict[str, str] = {}
    for name, keys in found.keys.items():
        key = array_key(keys)
        if key in names:
            raise InvalidArgumentError(
                f"Orbax would call two objects of the Checkpoint {key!r}: {shown[names[key]]} and "
                f"{shown[name]}. Rename one."
            )
        names[key] = name


def _keys(path: Sequence[Any]) -> Keys:
    return tuple(Key(place_name([key]), isinstance(key, jax.tree_util.SequenceKey)) for key in path)


def _is_object(leaf: Any) -> bool:
    return isinstance(leaf, (Optimizer, Metric)) or is_variable(leaf) or is_nnx_object(leaf)


def _opened(
    leaf: Any, replace: Callable[[Any], None]
) -> Iterator[tuple[tuple[Any, ...], Any, Callable[[Any], None]]]:
    """Yields what is in an object, with the ways to it and what puts something else there."""
    if is_nnx_object(leaf):
        yield from nnx_parts(leaf)
        return
    held = leaf.named_variables if isinstance(leaf, Metric) else held_variables(leaf)
    if held is None:
        yield (), variable_of(leaf), replace
        return
    for path, part in jax.tree_util.tree_flatten_with_path(held, is_leaf=is_variable)[0]:
        yield path, variable_of(part), replace


def _plain(name: str, part: Any, replace: Callable[[Any], None]) -> SavedValue:
    read: Callable[[], Any] = part if isinstance(part, Live) else lambda: part
    value = read()
    if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
        return PlainNumber(value, replace)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return RandomKey(read, replace)
    if isinstance(value, jax.Array | np.ndarray | np.generic) and value.dtype.kind not in "OSUMm":
        return PlainArray(read, replace)
    if hasattr(value, "get_state") and hasattr(value, "set_state"):
        return IteratorPlace(value)
    raise InvalidArgumentError(
        "A Checkpoint holds variables, Optimizers, metrics, iterators, Keras and nnx objects, arrays and "
        f"numbers, got {type(value).__name__} for {name!r}. Of an object of a class of your own give "
        "vars(object)."
    )
