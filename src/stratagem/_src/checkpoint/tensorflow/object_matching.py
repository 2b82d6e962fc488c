"""``ObjectMatches``: matches live objects with saved ones by the names of their references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem._src.checkpoint.tensorflow.keras_names import (
    attribute_of,
    is_keras3_optimizer,
    slot_variables,
    slots_of,
)
from stratagem._src.checkpoint.tensorflow.object_graph import Node, ObjectGraph, short_name
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.training.metrics.metric import Metric
from stratagem._src.variables.foreign_variables import is_variable, variable_of
from stratagem._src.variables.variable import Variable

__all__ = ["ObjectMatches"]

_ALL_VARIABLES = "_variables"


class ObjectMatches:
    """The live objects that were found for the nodes of a saved object graph.

    Args:
        graph: The graph.

    Attributes:
        variables: The variables by their nodes.
        nodes: The nodes of all objects, variables included, by the ids of the objects.
    """

    def __init__(self, graph: ObjectGraph) -> None:
        self._graph = graph
        self.variables: dict[int, Variable] = {}
        self.nodes: dict[int, int] = {}
        self._slots = {k: slots for k, n in enumerate(graph.nodes) if (slots := slots_of(n, graph))}
        self._slot_nodes = {slot.node for slots in self._slots.values() for slot in slots}
        self._optimizers: list[tuple[int, Any]] = []
        self._by_position: list[tuple[int, Variable]] = []
        self._seen: set[tuple[int, int]] = set()
        self._alive: list[Any] = []  # so that no other object gets the id of one

    def add(self, node: int, live: PyTree) -> None:
        """Matches an object, and all that it refers to.

        Raises:
            InvalidArgumentError: If a variable would get the values of two saved ones.
        """
        self._walk([(node, live)])
        for number, optimizer in self._optimizers:
            self._match_slots(number, optimizer)
        # In lists of an optimizer, for what names have not told.
        for number, variable in self._by_position:
            if id(variable) not in self.nodes and number not in self.variables:
                self.add_variable(number, variable)
        self._by_position.clear()

    def add_variable(self, node: int, variable: Variable) -> None:
        """Matches a variable that was found otherwise."""
        known = self.nodes.setdefault(id(variable), node)
        nodes = self._graph.nodes
        if known != node and nodes[known].key != nodes[node].key:
            first, second = (short_name(nodes[n].key or "") for n in (known, node))
            raise InvalidArgumentError(
                f"The variable {variable.name!r} is two variables of the checkpoint, {first!r} and "
                f"{second!r}. Create the objects as they were when they were saved."
            )
        self.variables[node] = variable

    def _walk(self, left: list[tuple[int, Any]]) -> None:
        while left:
            number, live = left.pop()
            if (number, id(live)) in self._seen:
                continue
            self._seen.add((number, id(live)))
            node = self._graph.nodes[number]
            if is_variable(live):
                if number in self._slot_nodes:
                    self._by_position.append((number, variable_of(live)))
                elif node.key is not None:
                    self.add_variable(number, variable_of(live))
                continue
            self.nodes.setdefault(id(live), number)
            self._alive.append(live)
            if hasattr(live, "_trainable_variables_indices"):
                self._optimizers.append((number, live))
            for name, child in node.children.items():
                found = _child(live, name, node)
                if name == _ALL_VARIABLES and isinstance(found, list):
                    self._list_variables(number, child, found)
                elif found is not None:
                    left.append((child, found))

    def _list_variables(self, optimizer: int, node: int, live: list[Any]) -> None:
        """Notes the variables that an optimizer lists again: Keras 2 and 3 number them differently."""
        if is_keras3_optimizer(self._graph.nodes[optimizer]):
            lists = self._graph.nodes[node]
            for name, child in lists.children.items():
                found = _child(live, name, lists)
                if found is not None:
                    self._by_position.append((child, variable_of(found)))

    def _match_slots(self, number: int, optimizer: Leaf) -> None:
        trained = [id(variable_of(v)) for v in optimizer._trainable_variables]
        for slot in self._slots.get(number, ()):
            original = self.variables.get(slot.of)
            live = slot_variables(optimizer, slot.name)
            if original is not None and id(original) in trained and len(live) == len(trained):
                self.add_variable(slot.node, variable_of(live[trained.index(id(original))]))


def _child(live: PyTree, name: str, node: Node) -> Any:
    """Returns what a live object has under a name in the saved one, or ``None``."""
    if isinstance(live, Mapping):
        return next((value for key, value in live.items() if str(key) == name), None)
    if isinstance(live, (list, tuple)):
        if name.isdecimal():
            return live[int(name)] if int(name) < len(live) else None
        return getattr(live, name, None) if name in getattr(live, "_fields", ()) else None
    if isinstance(live, Metric) and name in live.named_variables:
        return live.named_variables[name]
    return attribute_of(live, name, node)
