"""``MatchedCheckpoint``: a TensorFlow checkpoint under the names of the objects that are to be restored."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.checkpoint.format.saved_state import (
    DeferredValues,
    NamedValue,
    OptimizerArrays,
    SavedArray,
)
from stratagem._src.checkpoint.objects import COUNTER, CheckpointObjects
from stratagem._src.checkpoint.tensorflow.checkpoint_reader import open_tensors
from stratagem._src.checkpoint.tensorflow.h5_weights import H5Weights
from stratagem._src.checkpoint.tensorflow.integer_narrowing import narrow, narrowed_array
from stratagem._src.checkpoint.tensorflow.keras_names import optional_variables
from stratagem._src.checkpoint.tensorflow.key_matching import keys_by_layer, keys_by_name
from stratagem._src.checkpoint.tensorflow.object_graph import (
    GRAPH_KEY,
    ROOT,
    ObjectGraph,
    short_name,
)
from stratagem._src.checkpoint.tensorflow.object_matching import ObjectMatches
from stratagem._src.core.errors import InvalidArgumentError, NotFoundError
from stratagem._src.core.types import Leaf
from stratagem._src.variables.variable import Variable

__all__ = ["MatchedCheckpoint"]

_ROOT_NAME = "root"
_CONFIGURATION = "/.ATTRIBUTES/OBJECT_CONFIG_JSON"  # of Keras 2: how a layer was created


class MatchedCheckpoint:
    """A TensorFlow checkpoint, matched with live objects. See ``SavedCheckpoint``.

    Objects are matched by the names under which they refer to each other, as TensorFlow does. What has no
    object graph is matched by the names of variables, or layer by layer.

    Args:
        path: The checkpoint.
        given: The objects to restore, by name.
        objects: The same, with their variables.

    Attributes:
        objects: The objects to restore, without those that TensorFlow does not save and that keep their
            values: the seeds of Keras layers.

    Raises:
        NotFoundError: If the checkpoint lacks an object.
        InvalidArgumentError: If it cannot be matched.
        DataLossError: If it is corrupt.
    """

    optimizers: Collection[str] = ()

    def __init__(self, path: Path, given: Mapping[str, Any], objects: CheckpointObjects) -> None:
        self._path = path
        self._tensors = open_tensors(path)
        self._graph: ObjectGraph | None = None
        self._unbuilt = objects.unbuilt
        if isinstance(self._tensors, H5Weights):
            self._keys = keys_by_layer(self._tensors, given, objects, path)
        elif GRAPH_KEY in self._tensors:
            self._graph = ObjectGraph(self._tensors, path)
            self._keys = self._match(self._graph, given, objects)
        else:
            self._keys = keys_by_name(self._tensors, objects)
        optional = optional_variables(given)
        variables = {
            name: variable
            for name, variable in objects.variables.items()
            if name in self._keys or id(variable) not in optional
        }
        self.objects = objects._replace(variables=variables)
        self._dtypes = {name: np.dtype(v.dtype) for name, v in variables.items()}
        self._dtypes |= {name: value.dtype for name, value in objects.plain.items()}
        used = {*self._keys.values(), GRAPH_KEY}
        left = [key for key in self._tensors.shapes if key not in used]
        self.names: Collection[str] = (
            *self._keys,
            *(short_name(key) for key in left if not key.endswith(_CONFIGURATION)),
        )
        self.fingerprint = self._tensors.fingerprint
        self._check_complete(given)

    def _match(
        self, graph: ObjectGraph, given: Mapping[str, Any], objects: CheckpointObjects
    ) -> dict[str, str]:
        """Returns the keys of tensors by our names."""
        matches = self._matches = ObjectMatches(graph)
        matches.add(ROOT, dict(given))
        at_root = _ROOT_NAME in given and _ROOT_NAME not in graph.nodes[ROOT].children
        if at_root:
            matches.add(ROOT, given[_ROOT_NAME])
        found: dict[str, int | None] = {COUNTER: graph.follow([COUNTER])}
        for name, keys in objects.keys.items():
            if name in objects.variables:
                found[name] = matches.nodes.get(id(objects.variables[name]))
            else:
                texts = [key.text for key in keys]
                found[name] = graph.follow(
                    texts[1:] if at_root and texts[0] == _ROOT_NAME else texts
                )
        keyed = {name: graph.nodes[n].key for name, n in found.items() if n is not None}
        return {name: key for name, key in keyed.items() if key is not None}

    def _check_complete(self, given: Mapping[str, Any]) -> None:
        missing = [
            name
            if variable is None or variable.name == f"{name}:0"
            else f"{name} ({variable.name})"
            for name in (*self.objects.variables, *self.objects.plain)
            if name not in self._keys
            for variable in [self.objects.variables.get(name)]
        ]
        missing += [name for name, one in self._unbuilt.items() if self._node_of(one) is None]
        if not missing:
            return
        hint = ""
        if self._graph is not None and not given.keys() & self._graph.nodes[ROOT].children.keys():
            hint = f" Give the object that was saved as the root as Checkpoint({_ROOT_NAME}=…)."
        raise NotFoundError(
            f"The checkpoint {self._path} has no {missing}; it has {sorted(self.names)}.{hint}"
        )

    def _node_of(self, unbuilt: Leaf) -> int | None:
        return None if self._graph is None else self._matches.nodes.get(id(unbuilt))

    def array(self, name: str) -> SavedArray:
        """Returns an array."""
        saved = self._tensors.tensor(self._keys[name])
        return narrowed_array(saved, self._dtypes.get(name, saved.dtype), name)

    def of_each_worker(self, name: str) -> list[SavedArray]:
        """Returns the array: TensorFlow saves one for all workers."""
        return [self.array(name)]

    def optimizer(self, name: str) -> OptimizerArrays:
        """Raises: there are no optimizers of optax."""
        raise NotFoundError(f"The checkpoint {self._path} has no optimizer {name!r}.")

    def deferred(self, name: str, unbuilt: Leaf) -> DeferredValues:
        """Reads the values of an object that is not built.

        Args:
            name: The object's name.
            unbuilt: The object.
        """
        graph, node = self._graph, self._node_of(unbuilt)
        assert graph is not None  # see _check_complete
        assert node is not None
        values = {
            number: NamedValue(short_name(key), self._tensors.tensor(key).read())
            for number in graph.below(node)
            if (key := graph.nodes[number].key) is not None
        }
        known = dict(self._matches.variables)
        # Not themselves: what waits for an object must not keep it alive.
        others = [
            (number, weakref.ref(one))
            for one in self._unbuilt.values()
            if one is not unbuilt and (number := self._node_of(one)) is not None
        ]
        path = self._path

        def values_for(
            one: Leaf, held: Mapping[str, Variable], is_complete: bool
        ) -> Mapping[str, NamedValue]:
            matches = ObjectMatches(graph)
            for number, variable in known.items():
                matches.add_variable(number, variable)
            for number, reference in others:
                if (
                    other := reference()
                ) is not None:  # the variables of the model that it optimizes
                    matches.add(number, other)
            matches.add(node, one)
            found, missing, optional = {}, [], optional_variables([one])
            for key, variable in held.items():
                number = matches.nodes.get(id(variable), -1)
                if number in values:
                    saved = values[number]
                    value = narrow(saved.value, np.dtype(variable.dtype), variable.name)
                    found[key] = NamedValue(saved.name, value)
                elif id(variable) not in optional:
                    missing.append(variable.name)
            if missing:
                raise InvalidArgumentError(
                    f"{name!r} must have the variables that were saved to {path}, but the checkpoint has "
                    f"no {missing}. Create it as it was saved."
                )
            return found

        return DeferredValues([named.name for named in values.values()], values_for)
