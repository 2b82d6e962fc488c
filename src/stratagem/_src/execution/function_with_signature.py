"""``FunctionWithSignature``: a compiled function whose calls must match an ``input_signature``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core.types import PyTree
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.compiler_options import CompilerOptions
from stratagem._src.execution.function import Function
from stratagem._src.execution.input_signature import InputSignature, check_specs

__all__ = ["FunctionWithSignature", "with_signature"]


class FunctionWithSignature(Function):
    """A compiled function that checks its arguments, and converts numbers among them to arrays.

    Args:
        python_function: The function.
        specs: The ``input_signature``.
        parameters: The parameters of the function, if ``inspect.signature`` does not return the right ones.
        compiler_options: Flags of XLA for its programs.
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        specs: Sequence[Any],
        parameters: inspect.Signature | None = None,
        compiler_options: CompilerOptions | None = None,
    ) -> None:
        super().__init__(python_function, compiler_options)
        self._specs = specs
        self._parameters = parameters

    @functools.cached_property
    def _input_signature(self) -> InputSignature:
        # Computed by the first call: a method that is still unbound has one parameter more, the instance.
        parameters = self._parameters or inspect.signature(self._python_function)
        return InputSignature(parameters, self._specs)

    @functools.cached_property
    def _in_replica(self) -> Function:
        return Function(self.replica_function, self._compiler_options)

    @property
    def input_signature(self) -> Sequence[Any]:
        """The specs of its arguments."""
        return self._specs

    @property
    def replica_function(self) -> Callable[..., Any]:
        """The Python function, which checks its arguments first."""
        self._check_outermost()
        return _checked(self._python_function, self._input_signature)

    def method_of(self, instance: object) -> Callable[..., Any]:
        """Returns the Python method of ``instance``, which checks its arguments first."""
        method: Callable[..., Any] = self._python_function.__get__(instance)
        return _checked(method, InputSignature(self._parameters_of_method(), self._specs))

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> Any:
        """Calls the function with arguments that match the signature.

        Raises:
            SignatureMismatchError: If they do not match.
        """
        return super().__call__(*self._input_signature.conform(args, kwargs))

    def lower(self, *args: PyTree, **kwargs: PyTree) -> jax.stages.Lowered:
        """Returns the program of a call with arguments that match the signature; see ``Function.lower``."""
        return super().lower(*self._input_signature.conform(args, kwargs))

    def run_in_replicas(
        self, strategy: StrategyProtocol, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs this function in every replica of ``strategy``; each replica's arguments must match."""
        return self._in_replica.run_in_replicas(strategy, args, kwargs)

    def _of_method(self, method: Callable[..., Any]) -> Function:
        parameters = self._parameters_of_method()
        return FunctionWithSignature(method, self._specs, parameters, self._compiler_options)

    def _parameters_of_method(self) -> inspect.Signature:
        parameters = inspect.signature(self._python_function)
        without_instance = list(parameters.parameters.values())[1:]
        return parameters.replace(parameters=without_instance)

    def experimental_get_tracing_count(self) -> int:
        """Returns how many programs have been compiled: one per call signature."""
        in_replicas = self.__dict__.get("_in_replica")
        inside = 0 if in_replicas is None else in_replicas.experimental_get_tracing_count()
        return super().experimental_get_tracing_count() + inside

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the Python function and its signature."""
        arguments = (self._python_function, self._specs, self._parameters, self._compiler_options)
        return FunctionWithSignature, arguments


def with_signature(
    specs: Sequence[Any], compiler_options: CompilerOptions | None = None
) -> Callable[[Callable[..., Any]], Function]:
    """Returns a decorator that makes a ``FunctionWithSignature``.

    Raises:
        SignatureMismatchError: If ``specs`` is not a valid ``input_signature``.
    """
    check_specs(specs)
    return lambda python_function: FunctionWithSignature(
        python_function, specs, compiler_options=compiler_options
    )


def _checked(python_function: Callable[..., Any], signature: InputSignature) -> Callable[..., Any]:
    @functools.wraps(python_function)
    def call(*args: PyTree, **kwargs: PyTree) -> Any:
        return python_function(*signature.conform(args, kwargs))

    return call
