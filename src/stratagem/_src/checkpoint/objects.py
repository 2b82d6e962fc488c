"""``named_objects``: flattens the objects of a checkpoint and names them by their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.checkpoint.format.tree_metadata import Key, array_key
from stratagem._src.checkpoint.nnx_objects import LiveArray, is_nnx_object, nnx_parts
from stratagem._src.checkpoint.saved_values import (
    IteratorPosition,
    PlainArray,
    PlainNumber,
    RandomKey,
    SavedValue,
    SavedVariable,
)
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Leaf
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.training.metrics.metric import Metric
from stratagem._src.training.optimizer import Optimizer
from stratagem._src.variables.foreign_variables import (
    NotBuiltError,
    is_variable,
    trackable_variables,
    variable_of,
)
from stratagem._src.variables.path_names import path_name
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["CheckpointObjects", "is_object", "named_objects"]

COUNTER = "save_counter"

Keys = tuple[Key, ...]


class CheckpointObjects(NamedTuple):
    """The objects of a Checkpoint, by name.

    Attributes:
        variables: The variables, local and remote.
        plain: Arrays and numbers.
        optimizers: The optimizers.
        unbuilt: Keras objects that do not have their variables yet.
        keys: The path to each in the structure.
        structure: Returns the structure, with replaced arrays and numbers.
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
        """The values of this process, without optimizers."""
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
    """Returns the objects in a structure, named by their paths.

    A metric is represented by its variables.

    >>> import stratagem as sg
    >>> model = {"w": sg.Variable(1.0), "b": sg.Variable(0.0)}
    >>> list(named_objects({"model": model, "epoch": 3}).keys)
    ['epoch', 'model/b', 'model/w']

    Args:
        objects: The structure.
        allows_unbuilt: Whether Keras objects may still be unbuilt.

    Raises:
        InvalidArgumentError: If an object is of another kind, or two have the same name.
        NotBuiltError: If a Keras object is unbuilt, and that is not allowed.
    """
    leaves_with_path, structure = jax.tree_util.tree_flatten_with_path(
        dict(objects), is_leaf=is_object
    )
    leaves = [leaf for _, leaf in leaves_with_path]
    found = CheckpointObjects({}, {}, {}, {}, {}, lambda: jax.tree.unflatten(structure, leaves))
    paths: dict[str, str] = {}

    def replacer(position: int) -> Callable[[Any], None]:
        def put(value: Leaf) -> None:
            leaves[position] = value

        return put

    for position, (path, leaf) in enumerate(leaves_with_path):
        try:
            parts = list(_parts_of(leaf, replacer(position)))
        except NotBuiltError:
            if not allows_unbuilt:
                raise
            found.unbuilt[path_name(path)] = leaf
            continue
        for inner, part, put in parts:
            full_path = (*path, *inner)
            name, keys = path_name(full_path), _keys(full_path)
            shown_path = jax.tree_util.keystr(full_path)
            _check_name(name, shown_path, paths)
            paths[name] = shown_path
            found.keys[name] = keys
            if is_own_variable(part):
                found.variables[name] = part
            elif isinstance(part, Optimizer):
                found.optimizers[name] = part
            else:
                found.plain[name] = _plain(name, part, put)
    _check_optimizer_names(found, paths)
    _check_array_keys(found, paths)
    return found


def _check_name(name: str, shown_path: str, paths: Mapping[str, str]) -> None:
    if name in paths:
        raise InvalidArgumentError(
            f"Names in a Checkpoint must be unique, got {name!r} for both {paths[name]} and {shown_path}. "
            "Rename one."
        )
    if name.partition("/")[0] == COUNTER:
        raise InvalidArgumentError(
            f"{COUNTER!r} is reserved for the Checkpoint's count of saves, got {shown_path}. Rename the "
            "object."
        )
    is_of_worker = name.startswith("@") and name[1:].partition("/")[0].isdigit()
    try:
        name.encode()
    except UnicodeEncodeError:
        is_of_worker = True
    if is_of_worker:
        raise InvalidArgumentError(
            "Names in a Checkpoint must be valid UTF-8, and names that begin with '@' and a number are "
            f"reserved for workers, got {shown_path}. Rename the object."
        )


def _check_optimizer_names(found: CheckpointObjects, paths: Mapping[str, str]) -> None:
    for name in found.keys:
        for optimizer in found.optimizers:
            if name.startswith(f"{optimizer}/"):
                raise InvalidArgumentError(
                    "Names in a Checkpoint that begin with an Optimizer's name are reserved for its state, "
                    f"got {paths[name]} next to the Optimizer {paths[optimizer]}. Rename one."
                )


def _check_array_keys(found: CheckpointObjects, paths: Mapping[str, str]) -> None:
    names: dict[str, str] = {}
    for name, keys in found.keys.items():
        key = array_key(keys)
        if key in names:
            raise InvalidArgumentError(
                f"Two objects of the Checkpoint have the same key {key!r} in the Orbax format: "
                f"{paths[names[key]]} and {paths[name]}. Rename one."
            )
        names[key] = name


def _keys(path: Sequence[Any]) -> Keys:
    return tuple(Key(path_name([key]), isinstance(key, jax.tree_util.SequenceKey)) for key in path)


def is_object(leaf: Leaf) -> bool:
    """Returns whether a value is saved as one object, although it may be a structure of arrays too."""
    return isinstance(leaf, (Optimizer, Metric)) or is_variable(leaf) or is_nnx_object(leaf)


def _parts_of(
    leaf: Leaf, replace: Callable[[Any], None]
) -> Iterator[tuple[tuple[Any, ...], Any, Callable[[Any], None]]]:
    """Yields the parts of an object, each with its path and a setter that replaces it."""
    if is_nnx_object(leaf):
        yield from nnx_parts(leaf)
        return
    held = leaf.named_variables if isinstance(leaf, Metric) else trackable_variables(leaf)
    if held is None:
        yield (), variable_of(leaf), replace
        return
    for path, part in jax.tree_util.tree_flatten_with_path(held, is_leaf=is_variable)[0]:
        yield path, variable_of(part), replace


def _plain(name: str, part: Leaf, replace: Callable[[Any], None]) -> SavedValue:
    read: Callable[[], Any] = part if isinstance(part, LiveArray) else lambda: part
    value = read()
    if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
        return PlainNumber(value, replace)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return RandomKey(read, replace)
    if isinstance(value, jax.Array | np.ndarray | np.generic) and value.dtype.kind not in "OSUMm":
        return PlainArray(read, replace)
    if hasattr(value, "get_state") and hasattr(value, "set_state"):
        return IteratorPosition(value)
    raise InvalidArgumentError(
        "A Checkpoint holds variables, Optimizers, metrics, iterators, Keras and nnx objects, arrays and "
        f"numbers, got {type(value).__name__} for {name!r}. For an object of your own class, pass "
        "vars(object)."
    )
