"""``ObjectGraph``: the objects that a TensorFlow checkpoint was saved from, and their references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stratagem._src.checkpoint.tensorflow.bundle import TensorBundle
from stratagem._src.checkpoint.tensorflow.messages import parse
from stratagem._src.checkpoint.tensorflow.sstable import corrupt

__all__ = ["GRAPH_KEY", "ROOT", "Node", "ObjectGraph", "Slot", "short_name"]

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
ROOT = 0
_VALUE = "VARIABLE_VALUE"
_SUFFIX = f"/.ATTRIBUTES/{_VALUE}"


def short_name(key: str) -> str:
    """Returns the key of a variable without what all of them end with.

    >>> short_name("model/w/.ATTRIBUTES/VARIABLE_VALUE")
    'model/w'
    """
    return key.removesuffix(_SUFFIX)


@dataclass(frozen=True, slots=True)
class Slot:
    """A variable that an optimizer has for another one, as the legacy optimizers of Keras 2 save it.

    Attributes:
        name: What it is, such as ``"m"``.
        of: The node of the variable that it is for.
        node: Its own node.
    """

    name: str
    of: int
    node: int


@dataclass(frozen=True, slots=True)
class Node:
    """An object.

    Attributes:
        children: Nodes of the objects that it refers to, by their names in it.
        key: The key of its value, if it is a variable.
        full_name: The variable's own name, such as ``"dense/kernel"``.
        slots: Its slot variables, if it is a legacy optimizer.
    """

    children: dict[str, int] = field(default_factory=dict)
    key: str | None = None
    full_name: str = ""
    slots: tuple[Slot, ...] = ()


class ObjectGraph:
    """The objects of a checkpoint; the first node is the ``Checkpoint``.

    Args:
        bundle: The checkpoint.
        path: Its path, for messages.

    Raises:
        DataLossError: If the graph is malformed.
    """

    def __init__(self, bundle: TensorBundle, path: Path) -> None:
        graph = parse("ObjectGraph", bundle.tensor(GRAPH_KEY).read().item(), path)
        self.nodes: list[Node] = []
        for node in graph.nodes:
            value = next((a for a in node.attributes if a.name == _VALUE), None)
            key, full_name = (value.checkpoint_key, value.full_name) if value else (None, "")
            slots = tuple(
                Slot(s.slot_name, s.original_variable_node_id, s.slot_variable_node_id)
                for s in node.slot_variables
            )
            children = {child.local_name: child.node_id for child in node.children}
            self.nodes.append(Node(children, key, full_name, slots))
        for node in self.nodes:
            self._check(node, bundle, path)
        if not self.nodes:
            raise corrupt(path, "its object graph is empty")

    def _check(self, node: Node, bundle: TensorBundle, path: Path) -> None:
        linked = [
            *node.children.values(),
            *(n for slot in node.slots for n in (slot.of, slot.node)),
        ]
        if any(not 0 <= number < len(self.nodes) for number in linked):
            raise corrupt(path, "its object graph refers to an object that it does not have")
        if node.key is not None and node.key not in bundle:
            raise corrupt(path, f"its object graph refers to {node.key!r}, which it does not have")

    def follow(self, names: Sequence[str]) -> int | None:
        """Returns the node that names lead to from the first one; ``None`` if there is none."""
        number = ROOT
        for name in names:
            if name not in self.nodes[number].children:
                return None
            number = self.nodes[number].children[name]
        return number

    def below(self, start: int) -> Iterator[int]:
        """Yields a node and all nodes that can be reached from it, slot variables included."""
        seen, left = {start}, [start]
        while left:
            number = left.pop()
            yield number
            node = self.nodes[number]
            for other in (*node.children.values(), *(slot.node for slot in node.slots)):
                if other not in seen:
                    seen.add(other)
                    left.append(other)
