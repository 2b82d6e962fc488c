"""``PerWorkerVariable``: a variable with a separate value on each worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem._src.core.types import ArrayLike, Initializer
from stratagem._src.parameter_server.protocol.definition import DefinedOnWorker, Definitions
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.variable import Variable, _register

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.cluster_coordinator import ClusterCoordinator

__all__ = ["PerWorkerVariable", "WorkerLocalVariable"]


class PerWorkerVariable(MirroredVariable, DefinedOnWorker):
    """A variable with a separate, unsynchronized value on each worker.

    ``Variable(..., per_worker_variable=True)`` in the scope of a ``ParameterServerStrategy`` that has a
    ``ClusterCoordinator`` returns one. In a scheduled function, as a capture or argument, it is the
    variable of the worker that runs the function; in the coordinator, it is the coordinator's own. A
    worker creates it from the initial value on first use, and again when it comes back after a failure.
    Optimizers do not update it.

    Args:
        coordinator: The coordinator of the workers.
        definitions: The coordinator's definitions.
        initial_value: Array, number, or a function without arguments, which each worker calls.
        trainable: Without effect: it is never trainable.
        **options: The other arguments of ``Variable``.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        definitions: Definitions,
        *,
        initial_value: Initializer,
        trainable: bool | None = None,
        **options: Any,
    ) -> None:
        options["trainable"] = False
        MirroredVariable.__init__(self, coordinator.strategy, initial_value, **options)
        content = {"initial_value": initial_value, **options}
        DefinedOnWorker.__init__(self, definitions.make("variable", content))
        self._coordinator = coordinator

    def read_all(self) -> list[Any]:
        """Returns the value of each worker, in the order of the workers.

        Raises:
            Exception: The error of an earlier function, as from ``schedule``.
        """
        values = [
            self._coordinator.schedule(_read, args=(self,), worker=worker)
            for worker in self._coordinator.workers
        ]
        return [value.get() for value in values]


def _read(variable: Variable) -> Any:
    return variable.read_value()


class WorkerLocalVariable(MirroredVariable):
    """A ``PerWorkerVariable`` on a worker. It is pickled as its value."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (self.read_value(),)


def _identity(value: ArrayLike) -> Any:
    return value


_register(PerWorkerVariable)
_register(WorkerLocalVariable)
