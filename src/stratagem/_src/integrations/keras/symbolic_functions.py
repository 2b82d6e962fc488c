"""``tf`` functions of ``keras.Input``: each call becomes an operation of the functional model.

``tf.reduce_mean(layer(inputs), axis=1)`` has no values while a functional model is built. So once Keras is
imported, the public functions of arrays look for symbolic arguments first, and record an operation that
calls the function when the model runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import keras
import numpy as np

from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.keras_internals import Argument, output_spec_of
from stratagem._src.process.import_hooks import when_imported
from stratagem._src.tensorflow_api.conversion import as_tensor

__all__ = ["TensorFunction", "install_symbolic_functions"]

_PACKAGE = __name__.partition(".")[0]
_FUNCTIONS_OF = f"{_PACKAGE}._src.tensorflow_api."
_MODULES = ("bitwise", "debugging", "dtypes", "image", "linalg", "math", "nn", "sparse")
_TENSOR, _DTYPE = "stratagem_tensor", "stratagem_dtype"
_SYMBOLIC = keras.KerasTensor


@keras.saving.register_keras_serializable(package=_PACKAGE)
class TensorFunction(keras.Operation):  # type: ignore[misc]
    """An operation of a functional model that calls a function of ``tf``.

    Args:
        function: The function's public name below ``tf``.
        arguments: Its positional and named arguments. Dictionaries stand for the tensors, by their number,
            and for dtypes.
        name: The operation's name.
    """

    def __init__(self, function: str, arguments: PyTree, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function = function
        self.arguments = arguments

    def call(self, *tensors: Argument) -> Any:
        """Calls the function with values."""
        args, kwargs = _filled(self.arguments, tensors)
        return _public_function(self.function)(*args, **kwargs)

    def compute_output_spec(self, *tensors: Argument) -> Any:
        """Returns the symbolic result."""
        # What stays on the host, such as tf.shape(x), is not for JAX to trace.
        return output_spec_of(
            lambda *values: keras.tree.map_structure(as_tensor, self.call(*values)), *tensors
        )

    def get_config(self) -> dict[str, Any]:
        """Returns what it is made of, for a saved model."""
        return {"function": self.function, "arguments": self.arguments, "name": self.name}


def install_symbolic_functions() -> None:
    """Makes public functions of arrays accept symbolic tensors, also those that are loaded later."""
    package: Any = sys.modules[_PACKAGE]
    find = package._find

    def find_accepting(name: str) -> Any:
        return _accepting(find(name), name)

    package._find = find_accepting
    _wrap_functions_of(package, "")
    for name in _MODULES:
        full_name = f"{_PACKAGE}.{name}"
        when_imported(full_name, functools.partial(_wrap_module, full_name, f"{name}."))


def _wrap_module(full_name: str, prefix: str) -> None:
    _wrap_functions_of(sys.modules[full_name], prefix)


def _wrap_functions_of(module: ModuleType, prefix: str) -> None:
    for name, found in list(vars(module).items()):
        if not name.startswith("_"):
            setattr(module, name, _accepting(found, f"{prefix}{name}"))


def _accepting(found: Any, name: str) -> Any:
    """Returns a function that accepts symbolic tensors too; anything but a function of arrays as it is."""
    if not isinstance(found, FunctionType) or not found.__module__.startswith(_FUNCTIONS_OF):
        return found
    function: Callable[..., Any] = found

    @functools.wraps(function)
    def call(*args: Argument, **kwargs: Argument) -> Any:
        for arg in args:
            if _is_symbolic(arg):
                return _record(name, args, kwargs)
        if kwargs and any(map(_is_symbolic, kwargs.values())):
            return _record(name, args, kwargs)
        return function(*args, **kwargs)

    # Pickled by the public name, which is a function in a process without Keras too.
    call.__module__ = f"{_PACKAGE}.{name}".rpartition(".")[0]
    call.__qualname__ = name.rpartition(".")[2]
    return call


def _is_symbolic(argument: Argument) -> bool:
    kind = type(argument)
    if kind is _SYMBOLIC:
        return True
    return (kind is list or kind is tuple) and any(map(_is_symbolic, argument))


def _record(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors: list[Any] = []

    def written(value: Any) -> Any:
        if isinstance(value, _SYMBOLIC):
            tensors.append(value)
            return {_TENSOR: len(tensors) - 1}
        if isinstance(value, dict):
            return {key: written(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return [written(item) for item in value]
        if isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            return {_DTYPE: np.dtype(value).name}
        return value

    arguments = [written(list(args)), {key: written(item) for key, item in kwargs.items()}]
    return TensorFunction(name, arguments)(*tensors)


def _filled(written: PyTree, tensors: tuple[Any, ...]) -> Any:
    if isinstance(written, dict):
        if written.keys() == {_TENSOR}:
            return tensors[written[_TENSOR]]
        if written.keys() == {_DTYPE}:
            return np.dtype(written[_DTYPE])
        return {key: _filled(item, tensors) for key, item in written.items()}
    return [_filled(item, tensors) for item in written] if isinstance(written, list) else written


def _public_function(name: str) -> Callable[..., Any]:
    found: Any = sys.modules[_PACKAGE]
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function
