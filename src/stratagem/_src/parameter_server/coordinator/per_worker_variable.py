"""``PerWorkerVariable``: a variable that every worker has for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem._src.parameter_server.protocol.definition import DefinedOnWorker, Definitions
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.variable import Variable, _register

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.cluster_coordinator import ClusterCoordinator

__all__ = ["PerWorkerVariable", "VariableOfWorker"]


class PerWorkerVariable(MirroredVariable, DefinedOnWorker):
    """A variable with a value of its own on every worker, which nothing synchronizes.

    Made by ``Variable(..., per_worker_variable=True)`` in the scope of a ``ParameterServerStrategy``
    that has a ``ClusterCoordinator``. In a scheduled function, which captures it or gets it as an
    argument, it is the variable of the worker that runs it; in the coordinator it is the coordinator's
    own. It is made from the initial value when a worker first uses it, and again when a worker comes
    back after a failure. Optimizers do not update it.

    Args:
        coordinator: Whose workers they are.
        definitions: What workers are sent once.
        initial_value: Array, number, or a function without arguments, which every worker calls.
        trainable: Without effect: it never is.
        **options: The other arguments of ``Variable``.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        definitions: Definitions,
        *,
        initial_value: Any,
        trainable: bool | None = None,
        **options: Any,
    ) -> None:
        options["trainable"] = False
        MirroredVariable.__init__(self, coordinator.strategy, initial_value, **options)
        content = {"initial_value": initial_value, **options}
        DefinedOnWorker.__init__(self, definitions.make("variable", content))
        self._coordinator = coordinator

    def read_all(self) -> list[Any]:
        """Returns the value of every worker, in the order of the workers.

        Raises:
            Exception: What an earlier function raised, as from ``schedule``.
        """
        values = [
            self._coordinator.schedule(_read, args=(self,), worker=worker)
            for worker in self._coordinator.workers
        ]
        return [value.get() for value in values]


def _read(variable: Variable) -> Any:
    return variable.read_value()


class VariableOfWorker(MirroredVariable):
    """What a ``PerWorkerVariable`` is on a worker. What leaves the worker is its value."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_it_is, (self.read_value(),)


def _as_it_is(value: Any) -> Any:
    return value


_register(PerWorkerVariable)
_register(VariableOfWorker)
