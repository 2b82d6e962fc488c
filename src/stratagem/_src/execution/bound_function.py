"""``BoundFunction``: a compiled method together with its instance."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from stratagem._src.core.types import PyTree
from stratagem._src.current_strategy.protocols import StrategyProtocol

if TYPE_CHECKING:
    from stratagem._src.execution.function import Function

__all__ = ["BoundFunction", "CompiledFunction"]


class CompiledFunction(abc.ABC):
    """What ``stratagem.function`` returns, bound to an instance or not."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def python_function(self) -> Callable[..., Any]:
        """The Python function."""

    @property
    @abc.abstractmethod
    def input_signature(self) -> Sequence[Any] | None:
        """The specs of its arguments, if they were declared."""

    @property
    @abc.abstractmethod
    def replica_function(self) -> Callable[..., Any]:
        """What a replica calls, inside an outer compiled function or eagerly."""

    @abc.abstractmethod
    def run_in_replicas(
        self, strategy: StrategyProtocol, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the function, compiled, in every replica of ``strategy``."""


class BoundFunction(CompiledFunction):
    """The bound method that ``instance.method`` returns if the method is a ``stratagem.function``.

    It holds the instance, as Python's own bound methods do, so that ``Trainer().step(x)`` keeps it alive
    until it returns. The programs belong to the function in the class, and are dropped with the instance.

    Args:
        unbound: The function in the class.
        function: The compiled function that owns the programs of this instance.
        instance: The instance.
    """

    __slots__ = ("__self__", "__weakref__", "_function", "_unbound")

    def __init__(self, unbound: Function, function: Function, instance: object) -> None:
        self._unbound = unbound
        self._function = function
        self.__self__ = instance

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> Any:
        """Calls the method; compiles it first if the call signature is new."""
        return self._function(*args, **kwargs)

    @property
    def python_function(self) -> Callable[..., Any]:
        """The Python method."""
        method: Callable[..., Any] = self._unbound.python_function.__get__(self.__self__)
        return method

    @property
    def input_signature(self) -> Sequence[Any] | None:
        """The specs of its arguments, if they were declared."""
        return self._unbound.input_signature

    @property
    def replica_function(self) -> Callable[..., Any]:
        """What a replica calls, inside an outer compiled function or eagerly."""
        return self._unbound.method_of(self.__self__)

    def lower(self, *args: PyTree, **kwargs: PyTree) -> jax.stages.Lowered:
        """Returns the program of a call, without running it; see ``Function.lower``."""
        return self._function.lower(*args, **kwargs)

    def experimental_get_tracing_count(self) -> int:
        """Returns how many programs have been compiled for this instance."""
        return self._function.experimental_get_tracing_count()

    def run_in_replicas(
        self, strategy: StrategyProtocol, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the method in every replica of ``strategy``."""
        return self._function.run_in_replicas(strategy, args, kwargs)

    @property
    def __func__(self) -> Function:
        return self._unbound

    def __getattr__(self, name: str) -> Any:
        # The name, docstring and other attributes of the Python method.
        return getattr(self._unbound, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundFunction):
            return NotImplemented
        return self.__self__ is other.__self__ and self._unbound is other._unbound

    def __hash__(self) -> int:
        return hash((id(self.__self__), self._unbound))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the function in the class and the instance."""
        return _bind, (self._unbound, self.__self__)

    def __repr__(self) -> str:
        return f"<bound {self._unbound!r} of {self.__self__!r}>"


def _bind(unbound: Function, instance: object) -> Any:
    return unbound.__get__(instance)
