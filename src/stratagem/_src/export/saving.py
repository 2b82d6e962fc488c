"""``save``: exports a model's functions and weights to a directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from stratagem._src.checkpoint.collective_commit import CollectiveCommit
from stratagem._src.core.errors import InvalidArgumentError, MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.core.io_options import SaveOptions
from stratagem._src.core.types import PyTree
from stratagem._src.execution.bound_function import CompiledFunction
from stratagem._src.export.directory import (
    SavedSignature,
    SavedWeight,
    is_signature_name,
    write_directory,
)
from stratagem._src.export.signature_trace import TracedSignature, trace_signature
from stratagem._src.variables.variable import Variable

__all__ = ["DEFAULT_SIGNATURE", "exported", "save"]

DEFAULT_SIGNATURE = "serving_default"
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def save(
    obj: Any,
    export_dir: str | os.PathLike[str],
    signatures: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    options: SaveOptions | None = None,
) -> None:
    """Exports functions and their weights, for programs without this library or the Python code.

    Each function becomes a StableHLO program, made by ``jax.export``, for CPU, GPU and TPU. Dimensions that
    its ``input_signature`` leaves unknown stay symbolic; the leading unknown dimensions of all arguments
    are equal. It can be differentiated once. Weights are stored once, separately from the programs. If
    several workers share the variables, all of them call this, and the leader writes.

    Args:
        obj: A Keras model with known inputs; or a function with an ``input_signature``; or an object with
            such functions as attributes: each is saved under its name, and ``__call__`` as
            ``"serving_default"``.
        export_dir: The directory. An existing one is replaced when the new one is complete.
        signatures: A function with an ``input_signature`` instead of those of ``obj``, or several by name.
        options: Accepted for compatibility with TensorFlow.

    Raises:
        InvalidArgumentError: If there is no function to save, or one lacks an ``input_signature``.
        VariableError: If a function updates variables.
        MissingExtraError: If ``flatbuffers`` is not installed.

    Differs from tf.distribute: other attributes of ``obj`` are not saved.

    JAX equivalent: ``jax.export.export(jax.jit(f))(*args).serialize()``, and ``numpy.savez``.

    >>> import tempfile
    >>> import stratagem as sg
    >>> w = sg.Variable([2.0, 3.0])
    >>> @sg.function(input_signature=[sg.TensorSpec([None, 2])])
    ... def predict(x):
    ...     return x @ w
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     sg.saved_model.save(predict, directory + "/model")
    ...     loaded = sg.saved_model.load(directory + "/model")
    >>> loaded([[1.0, 1.0], [2.0, 0.0]])
    Array([5., 4.], dtype=float32)
    """
    traced, variables = _traced(obj, signatures)
    commit = CollectiveCommit(variables, "saving a model")
    commit.run_on_all(
        lambda: (
            write_directory(export_dir, *_contents(traced, variables))
            if commit.worker == 0
            else None
        )
    )


def exported(model: Any) -> tuple[dict[str, SavedWeight], dict[str, SavedSignature]]:
    """Returns the weights and signatures that ``save`` writes for a model."""
    return _contents(*_traced(model, None))


def _traced(obj: Any, signatures: Any) -> tuple[list[TracedSignature], list[Variable]]:
    """Returns the functions to save, traced, and the variables that they read."""
    functions = _functions(obj, signatures)
    for name in functions:
        if not is_signature_name(name):
            raise InvalidArgumentError(
                f"The name of a signature must consist of letters, digits and '_.-', got {name!r}."
            )
    traced = [trace_signature(name, fn, specs) for name, (fn, specs) in functions.items()]
    return traced, list({id(v): v for one in traced for v in one.variables}.values())


def _functions(obj: Any, signatures: Any) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
    if signatures is not None:
        given = signatures if isinstance(signatures, Mapping) else {DEFAULT_SIGNATURE: signatures}
        return {name: _with_specs(name, function) for name, function in given.items()}
    if isinstance(obj, CompiledFunction):
        return {DEFAULT_SIGNATURE: _with_specs(DEFAULT_SIGNATURE, obj)}
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(obj, keras.Model):
        # Imported here because it needs Keras.
        from stratagem._src.integrations.keras.serving import serving_functions

        return dict(serving_functions(obj))
    found = {
        DEFAULT_SIGNATURE if name == "__call__" else name: _with_specs(name, function)
        for name in dir(obj)
        if isinstance(function := getattr(obj, name, None), CompiledFunction)
        and function.input_signature is not None
    }
    if not found:
        raise InvalidArgumentError(
            "save() needs a Keras model or functions with an input_signature, such as "
            "@sg.function(input_signature=[sg.TensorSpec([None, 3])]), as obj, as its attributes or as "
            f"signatures=, got {obj!r}."
        )
    return found


def _with_specs(name: str, function: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
    specs = function.input_signature if isinstance(function, CompiledFunction) else None
    if specs is None:
        raise InvalidArgumentError(
            f"Signature {name!r} must have an input_signature, got {function!r}. Write "
            "@sg.function(input_signature=[sg.TensorSpec([None, 3])]), with a spec for each argument."
        )
    return function.python_function, specs


def _contents(
    traced: Sequence[TracedSignature], variables: Sequence[Variable]
) -> tuple[dict[str, SavedWeight], dict[str, SavedSignature]]:
    weights: dict[str, SavedWeight] = {}
    name_of: dict[int, str] = {}
    for variable in variables:
        name = name_of[id(variable)] = _free_name(variable.name.removesuffix(":0"), weights)
        weights[name] = SavedWeight(variable.numpy(), variable.trainable)
    for one in traced:
        for constant in one.constants:
            if id(constant) not in name_of:
                name = name_of[id(constant)] = _free_name("constant", weights)
                weights[name] = SavedWeight(np.asarray(constant), trainable=False)
    return weights, {one.name: _exported(one, name_of, weights) for one in traced}


def _free_name(wanted: str, taken: Mapping[str, Any]) -> str:
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def _exported(
    signature: TracedSignature, name_of: Mapping[int, str], weights: Mapping[str, SavedWeight]
) -> SavedSignature:
    of_variables = [name_of[id(variable)] for variable in signature.variables]
    of_constants = [name_of[id(constant)] for constant in signature.constants]
    used = tuple(dict.fromkeys([*of_variables, *of_constants]))

    def program(values: dict[str, Any], *args: PyTree) -> Any:
        return signature.function(
            [values[name] for name in of_variables], [values[name] for name in of_constants], args
        )

    taken = {
        name: jax.ShapeDtypeStruct(weights[name].value.shape, weights[name].value.dtype)
        for name in used
    }
    made = export.export(jax.jit(program), platforms=_PLATFORMS)(taken, *signature.avals)
    try:
        serialized = made.serialize(vjp_order=1)
    except ImportError as error:
        raise MissingExtraError(
            "Saving and loading models needs flatbuffers, which is not installed. "
            + install_hint("export")
        ) from error
    return SavedSignature(signature.parameters, signature.specs, used, bytes(serialized))
