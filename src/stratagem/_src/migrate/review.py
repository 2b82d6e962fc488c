"""What a migrated program still needs by hand: names that nothing here takes the place of."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from stratagem._src.migrate.available import exists, translation
from stratagem._src.migrate.cautions import cautions
from stratagem._src.migrate.control_flow import tensor_control_flow
from stratagem._src.migrate.findings import Finding, Kind
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.new_names import new_name
from stratagem._src.migrate.program import Program, dotted_name, import_prefix

__all__ = ["review"]

_CALLBACK = (
    "stays under sg, and calls Python from compiled code; JAX's own way is jax.pure_callback, or "
    "jax.experimental.io_callback for functions with effects"
)
_HOST_CALLS = {"py_function": _CALLBACK, "numpy_function": _CALLBACK}
# Names of Keras 2 that Keras 3 has dropped, by how they begin below tf.keras.
_DROPPED_BY_KERAS = {
    "backend.function": "a Python function, compiled by sg.function",
    "backend.get_session": "nothing: there are no sessions",
    "backend.gradients": "sg.value_and_grad",
    "backend.learning_phase": "the argument training of a layer's call",
    "backend.set_learning_phase": "the argument training of a layer's call",
    "backend.set_session": "nothing: there are no sessions",
    "backend.placeholder": "keras.Input",
    "estimator": "model.fit, or a loop of your own over sg.function",
    "experimental.": "a layer or a function of your own",
    "layers.DenseFeatures": "keras.utils.FeatureSpace",
    "layers.LocallyConnected": "a convolution, or a layer of your own",
    "premade": "a model of your own",
    "preprocessing.image.ImageDataGenerator": "keras.utils.image_dataset_from_directory and layers",
    "utils.multi_gpu_model": "sg.distribute.MirroredStrategy, and the model under its scope",
}
_OTHER_PACKAGES = {
    "tensorflow_addons": "Keras 3, optax, or code of your own",
    "tensorflow_datasets": "tfds.data_source, which needs no TensorFlow, or files for sg.data",
    "tensorflow_federated": "nothing of Stratagem",
    "tensorflow_hub": "a model of Keras, or weights that sg.train.Checkpoint reads",
    "tensorflow_probability": "tensorflow_probability.substrates.jax",
    "tensorflow_text": "a tokenizer of Python in Dataset.map",
}


def review(
    program: Program, inference: Inference, rewritten: set[cst.CSTNode]
) -> Iterator[Finding]:
    """Yields what is left to do, and what to check.

    Args:
        program: The program as it was.
        inference: What is known about it.
        rewritten: The roots of names of TensorFlow that have become JAX's.
    """
    for node in program.nodes:
        if isinstance(node, cst.Import | cst.ImportFrom):
            yield from _imports(program, node)
        elif isinstance(node, cst.Name | cst.Attribute):
            message = _name(program, node, rewritten)
            if message is not None:
                yield Finding(program.line(node), Kind.LEFT, message)
    if program.imported:
        yield from tensor_control_flow(program, inference)
        yield from cautions(program, inference)


def _name(program: Program, node: cst.CSTNode, rewritten: set[cst.CSTNode]) -> str | None:
    name = program.tensorflow_name(node)
    if not name or isinstance(program.parent(node), cst.Attribute):
        return None
    if name in _HOST_CALLS:
        return f"tf.{name} {_HOST_CALLS[name]}"
    root = node
    while isinstance(root, cst.Attribute):
        root = root.value
    if root in rewritten or new_name(name) is not None:
        return None
    if name.startswith("keras."):
        below = name.removeprefix("keras.")
        instead = next((v for k, v in _DROPPED_BY_KERAS.items() if below.startswith(k)), None)
        return None if instead is None else f"tf.{name} is not in Keras 3: use {instead}"
    if exists(name):
        return None
    instead = translation(name)
    return f"tf.{name} is not in Stratagem" + (f": use {instead}" if instead else "")


def _imports(program: Program, node: cst.Import | cst.ImportFrom) -> Iterator[Finding]:
    if isinstance(node, cst.Import):
        modules = [alias.evaluated_name for alias in node.names]
    elif node.relative:
        return
    else:
        modules = [dotted_name(node.module) or ""]
        is_ours = modules[0].startswith("tensorflow") and import_prefix(modules[0]) is not None
        if is_ours and isinstance(node.names, cst.ImportStar):
            message = f"from {modules[0]} import *: its names are not followed; import the module"
            yield Finding(program.line(node), Kind.LEFT, message)
    for module in modules:
        package = module.partition(".")[0]
        if package == "tensorflow" and import_prefix(module) is None:
            message = f"{module} is not a public module of TensorFlow: nothing here takes its place"
        elif package in _OTHER_PACKAGES:
            message = f"{package} needs TensorFlow: use {_OTHER_PACKAGES[package]}"
        else:
            continue
        yield Finding(program.line(node), Kind.LEFT, message)
