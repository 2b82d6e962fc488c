"""``load``: loads a saved model as functions over variables of the current strategy."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jax import export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, sdy, stablehlo

from stratagem._src.core.errors import DataLossError, InvalidArgumentError, MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.core.io_options import LoadOptions
from stratagem._src.core.types import PyTree
from stratagem._src.execution.input_signature import InputSignature
from stratagem._src.export.directory import (
    SavedSignature,
    is_keras_directory,
    read_directory,
)
from stratagem._src.export.saving import DEFAULT_SIGNATURE, exported
from stratagem._src.jax_compat.stable_custom_calls import stable_custom_calls
from stratagem._src.variables.variable import Variable

__all__ = ["LoadedModel", "LoadedSignature", "load"]


_CUSTOM_CALL = "stablehlo.custom_call"
_TARGET = "call_target_name"


class LoadedSignature:
    """A saved function that reads its weights from variables.

    It can be called anywhere, including replicas, compiled functions and gradients.
    """

    def __init__(self, name: str, saved: SavedSignature) -> None:
        self._name = name
        self._variables: dict[str, Variable] = {}
        self._exported = _deserialized(name, saved.program)
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        try:
            parameters = [inspect.Parameter(each, positional) for each in saved.parameters]
            self.__signature__: inspect.Signature = inspect.Signature(parameters)
        except (TypeError, ValueError) as error:
            raise DataLossError(
                f"The parameters of signature {name!r} are not valid names: {error}."
            ) from error
        self._inputs = InputSignature(self.__signature__, saved.specs)

    def bind(self, variables: Mapping[str, Variable]) -> None:
        """Binds the weights to variables."""
        self._variables = dict(variables)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> Any:
        """Calls the saved function.

        Raises:
            SignatureMismatchError: If the arguments do not match the input signature.
        """
        conformed = self._inputs.conform(args, kwargs)
        weights = {name: variable.read_value() for name, variable in self._variables.items()}
        return self._exported.call(weights, *conformed)

    def __repr__(self) -> str:
        return f"<saved function {self._name}{self.__signature__}>"


class LoadedModel:
    """A loaded model, returned by ``load``.

    Attributes:
        signatures: The saved functions by name.
        variables: The weights.
    """

    def __init__(
        self, signatures: Mapping[str, LoadedSignature], variables: tuple[Variable, ...]
    ) -> None:
        self.signatures: Mapping[str, LoadedSignature] = MappingProxyType(dict(signatures))
        self.variables = variables

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The trainable weights."""
        return tuple(variable for variable in self.variables if variable.trainable)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> Any:
        """Calls ``signatures["serving_default"]``, or the only signature.

        Raises:
            InvalidArgumentError: If there are several signatures, and none is the default.
        """
        chosen = self.signatures.get(DEFAULT_SIGNATURE)
        if chosen is None and len(self.signatures) == 1:
            (chosen,) = self.signatures.values()
        if chosen is None:
            raise InvalidArgumentError(
                f"This saved model has no {DEFAULT_SIGNATURE!r}. Call one of its signatures: "
                f"{sorted(self.signatures)}."
            )
        return chosen(*args, **kwargs)


def load(
    export_dir: str | os.PathLike[str], tags: Any = None, options: LoadOptions | None = None
) -> LoadedModel:
    """Loads a saved model; its weights become variables of the current strategy.

    Inside ``strategy.scope()`` the variables are mirrored, so the functions can be called, and the weights
    trained, in ``strategy.run()``.

    A model is a program. Load models only from sources that you would install a library from.

    Args:
        export_dir: The directory that ``save``, or ``save`` of a Keras model, wrote.
        tags: Accepted for compatibility with TensorFlow, without effect.
        options: Accepted for compatibility with TensorFlow, without effect.

    Raises:
        NotFoundError: If there is no saved model.
        DataLossError: If it is corrupt.
        InvalidArgumentError: If it contains custom calls that ``save`` never writes.
        MissingExtraError: If ``flatbuffers`` is not installed.

    >>> import stratagem as sg
    >>> sg.saved_model.load("nowhere")
    Traceback (most recent call last):
    stratagem.errors.NotFoundError: There is no saved model in 'nowhere'.
    """
    if is_keras_directory(export_dir):
        # Imported here because it needs Keras.
        from stratagem._src.integrations.keras.loader import load_keras

        weights, saved = exported(load_keras().saving.load_model(export_dir))
    else:
        weights, saved = read_directory(export_dir)
    for name, one in saved.items():
        if missing := set(one.weights) - set(weights):
            raise DataLossError(f"Signature {name!r} needs weights that are missing: {missing}.")
    # Programs first: a rejected model must not leave variables behind.
    signatures = {name: LoadedSignature(name, one) for name, one in saved.items()}
    variables = {
        name: Variable(weight.value, trainable=weight.trainable, name=name)
        for name, weight in weights.items()
    }
    for name, signature in signatures.items():
        signature.bind({weight: variables[weight] for weight in saved[name].weights})
    return LoadedModel(signatures, tuple(variables.values()))


def _deserialized(name: str, program: bytes) -> export.Exported:
    try:
        read = export.deserialize(bytearray(program))
        foreign = _foreign_custom_calls(read)
    except ImportError as error:
        raise MissingExtraError(
            "Saving and loading models needs flatbuffers, which is not installed. "
            + install_hint("export")
        ) from error
    except Exception as error:
        raise DataLossError(f"The program of signature {name!r} is corrupt: {error}.") from error
    if foreign:
        raise InvalidArgumentError(
            "A saved model may only use custom calls that jax.export guarantees to be stable, but "
            f"signature {name!r} calls {', '.join(map(repr, foreign))}: functions of this process, with "
            "arguments from the file. save() never writes these. If you trust its author, use "
            "jax.export.deserialize."
        )
    return read


def _foreign_custom_calls(exported: export.Exported) -> list[str]:
    """Returns the custom calls of a program and of its gradients that ``jax.export`` would not export.

    A custom call invokes a function of this process by name, with arguments from the file. Some of the
    functions that JAX registers do not validate an index or an address.

    Raises:
        Exception: If the program cannot be parsed.
    """
    found = _targets(exported)
    while exported.has_vjp():
        exported = exported.vjp()
        found |= _targets(exported)
    return sorted(found - stable_custom_calls())


def _targets(exported: export.Exported) -> set[str]:
    found = set()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == _CUSTOM_CALL:
            found.add(ir.StringAttr(operation.attributes[_TARGET]).value)
        return ir.WalkResult.ADVANCE

    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    with context:
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        module.operation.walk(visit)
    return found
