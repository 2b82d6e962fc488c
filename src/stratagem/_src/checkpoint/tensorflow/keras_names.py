"""What TensorFlow's checkpoints call the parts of Keras objects, of Keras 3 and of Keras 2."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from stratagem._src.checkpoint.tensorflow.object_graph import Node, ObjectGraph, Slot
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.tensorflow_api.module import Module
from stratagem._src.variables.foreign_variables import variable_of

__all__ = [
    "attribute_of",
    "is_keras3_optimizer",
    "keras_layers",
    "optional_variables",
    "slot_variables",
    "slots_of",
]

# Keras 2 numbers the layers of a model; those without weights do not matter.
_LAYER = re.compile(r"layer_with_weights-(\d+)")
_RENAMED = {"iter": "_iterations"}
_VARIABLE_LISTS = ("variables", "trainable_variables", "non_trainable_variables")

# What the optimizers of Keras 3 call what legacy optimizers of Keras 2 have in slots.
_SLOT_LISTS = {
    "m": ("_momentums", "_m"),
    "v": ("_velocities", "_u"),
    "vhat": ("_velocity_hats",),
    "momentum": ("momentums", "_momentums"),
    "rms": ("_velocities",),
    "mg": ("_average_gradients",),
    "accumulator": ("_accumulators",),
    "linear": ("_linears",),
    "accum_grad": ("_accumulated_grads",),
    "accum_var": ("_accumulated_delta_vars",),
}


def attribute_of(live: Leaf, name: str, node: Node) -> Any:
    """Returns the attribute of an object that TensorFlow's checkpoints call ``name``, or ``None``.

    Args:
        live: The object.
        name: The name.
        node: The saved object.
    """
    if name in _VARIABLE_LISTS and _is_layer(live):
        # Model.export of Keras 3 saves nothing else. Otherwise variables have names, which say more.
        is_export = "_all_variables" in node.children
        return getattr(live, name) if is_export and name != "variables" else None
    layer = _LAYER.fullmatch(name)
    if layer and hasattr(live, "layers"):
        with_weights = [one for one in live.layers if one.weights]
        number = int(layer[1])
        return with_weights[number] if number < len(with_weights) else None
    held = getattr(live, "__dict__", {})
    # A private attribute in one version of Keras is public in the other: Dense.kernel and Dense._kernel.
    for candidate in (name, f"_{name}", name.removeprefix("_"), _RENAMED.get(name)):
        if held.get(candidate) is not None:
            return held[candidate]
    return None


def is_keras3_optimizer(node: Node) -> bool:
    """Returns whether an object that has ``_variables`` is an optimizer of Keras 3."""
    return "_trainable_variables" in node.children


def slots_of(node: Node, graph: ObjectGraph) -> tuple[Slot, ...]:
    """Returns the variables that an optimizer of Keras 2 has for others.

    Those of legacy optimizers are saved as slots. Other optimizers have lists of them in the order of the
    variables, which another version of Keras may order differently; but their names end with those of the
    variables.
    """
    if node.slots or is_keras3_optimizer(node) or "_iterations" not in node.children:
        return node.slots
    by_name: dict[str, list[int]] = {}
    for number, other in enumerate(graph.nodes):
        if other.key is not None:
            by_name.setdefault(other.full_name, []).append(number)
    found = []
    for name, child in node.children.items():
        if name == "_variables":
            continue
        for element in graph.nodes[child].children.values():
            # Such as Adam/m/dense/kernel.
            of = by_name.get(graph.nodes[element].full_name.split("/", 2)[-1], [])
            if len(of) == 1 and of != [element]:
                found.append(Slot(name, of[0], element))
    return tuple(found)


def slot_variables(optimizer: Leaf, name: str) -> list[Any]:
    """Returns a Keras optimizer's variables of one kind, in the order of its trainable variables."""
    held = vars(optimizer)
    return next((held[one] for one in (name, *_SLOT_LISTS.get(name, ())) if held.get(one)), [])


def optional_variables(objects: PyTree) -> set[int]:
    """Returns the ids of variables that TensorFlow does not save: seeds and metrics of Keras layers."""
    found: set[int] = set()
    for layer in keras_layers(objects):
        weights = {id(variable_of(v)) for v in layer.weights}
        found |= {id(variable_of(v)) for v in layer.variables} - weights
    return found


def keras_layers(value: PyTree) -> Iterator[Any]:
    """Yields the Keras layers and models in a structure; not those inside of others."""
    if isinstance(value, Module):
        yield from keras_layers(vars(value))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from keras_layers(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from keras_layers(one)
    elif _is_layer(value):
        yield value


def _is_layer(value: Leaf) -> bool:
    return hasattr(value, "_seed_generators")
