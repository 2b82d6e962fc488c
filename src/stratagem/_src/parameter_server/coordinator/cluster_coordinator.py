"""``ClusterCoordinator``: runs functions on the workers of a parameter-server cluster."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Dataset, PyTree
from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher
from stratagem._src.parameter_server.coordinator.per_worker import PerWorkerValues
from stratagem._src.parameter_server.coordinator.per_worker_dataset import PerWorkerDataset
from stratagem._src.parameter_server.coordinator.per_worker_variable import PerWorkerVariable
from stratagem._src.parameter_server.coordinator.periodic_checks import start_periodic_checks
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.coordinator.server_recovery import ServerRecovery
from stratagem._src.parameter_server.coordinator.server_restorer import (
    CheckpointSource,
    ServerRestorer,
)
from stratagem._src.parameter_server.protocol.serialization import (
    Payload,
    pack,
    unpicklable_part_error,
)
from stratagem._src.process.fork import at_exit
from stratagem._src.strategies.parameter_server import ParameterServerStrategy
from stratagem._src.transport import Credentials

__all__ = ["ClusterCoordinator", "CoordinatedTask", "coordinated_tasks"]

_NO_ARGUMENTS = pack(((), {}))

_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
_coordinators: weakref.WeakSet[ClusterCoordinator] = weakref.WeakSet()


@dataclass(frozen=True)
class CoordinatedTask:
    """A worker or parameter server of a coordinator in this process, with its address."""

    job: str
    index: int
    address: str


def coordinated_tasks() -> list[CoordinatedTask]:
    """Returns the tasks of all coordinators in this process."""
    return [task for coordinator in list(_coordinators) for task in coordinator.tasks()]


@at_exit
def _stop_all() -> None:
    """Closes the sessions with the workers, so that they need not wait for a timeout."""
    for dispatcher in list(_dispatchers):
        dispatcher.stop()


class ClusterCoordinator:
    """Schedules functions on the workers of a ``ParameterServerStrategy``, and tolerates their loss.

    There is one coordinator per strategy: a second call returns the same object.

    A function is sent to a worker once, with its current captures, and called by number from then on.
    When a worker is lost, its functions run again on other workers, so a function runs at least once.
    When the worker comes back, it gets work again, and its per-worker datasets start from the beginning.
    A worker that the cluster resolver reports later joins then.

    If a function raises, functions that have not started are cancelled. ``schedule``, ``join`` or
    ``done`` raises the error, once, after all running functions have ended. If a parameter server is
    lost, these methods and ``fetch`` raise ``PSUnavailableError``, unless ``recover_servers_from`` was
    called.

    Differs from tf.distribute: a worker runs several functions concurrently, results can be arguments of
    other functions, functions can have a worker or a priority.

    Args:
        strategy: The strategy.
        closures_per_worker: Number of functions that a worker runs concurrently, so that one computes
            while another waits for a parameter server. Use 1 for functions that must not overlap.
        worker_timeout: Seconds without a reply after which a worker or parameter server counts as lost.
        patience: Seconds to wait for a worker when there is none, and for parameter servers that
            ``recover_servers_from`` restores.

    Raises:
        ValueError: If ``strategy`` is not a ``ParameterServerStrategy``.
    """

    strategy: ParameterServerStrategy

    def __new__(
        cls,
        strategy: ParameterServerStrategy,
        *,
        closures_per_worker: int = 2,
        worker_timeout: float = 10.0,
        patience: float = 300.0,
    ) -> ClusterCoordinator:
        """Returns the coordinator of a strategy, created on the first call."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise InvalidArgumentError(
                "strategy must be a ParameterServerStrategy, the only one whose workers take functions "
                f"from a coordinator, got {type(strategy).__name__}."
            )
        options = {
            "closures_per_worker": closures_per_worker,
            "worker_timeout": worker_timeout,
            "patience": patience,
        }
        for name, value in options.items():
            if not value > 0:
                raise InvalidArgumentError(f"{name} must be more than 0, got {value!r}.")
        known: ClusterCoordinator | None = getattr(strategy, "_cluster_coordinator", None)
        if known is None:
            known = super().__new__(cls)
            known._begin(strategy, options)
            strategy._cluster_coordinator = known  # type: ignore[attr-defined]
        elif known._options != options:
            raise InvalidArgumentError(
                f"The coordinator of a strategy must get the same options again, got {options}, but "
                f"it was created with {known._options}."
            )
        return known

    def _begin(self, strategy: ParameterServerStrategy, options: Mapping[str, Any]) -> None:
        self.strategy = strategy
        self._options = options
        registry = strategy.client.registry
        dispatcher = Dispatcher(
            Credentials.from_environment(),
            pack(strategy),
            owner=registry.owner,
            replaces=registry.replaces,
            **options,
        )
        self._dispatcher = dispatcher
        _dispatchers.add(dispatcher)
        _coordinators.add(self)
        weakref.finalize(self, setattr, dispatcher, "abandoned", True).atexit = False
        strategy.extended.make_per_worker_variables_with(
            functools.partial(_make_per_worker_variable, weakref.ref(self))
        )
        timeout = options["worker_timeout"]
        start_periodic_checks(dispatcher, strategy.client, strategy.cluster_resolver, timeout)

    @property
    def workers(self) -> list[int]:
        """The indices of all workers that the cluster resolver has reported so far."""
        return self._dispatcher.workers

    def tasks(self) -> list[CoordinatedTask]:
        """Returns the connected workers and the parameter servers."""
        present = self.present_workers
        workers = self._dispatcher.addresses()
        servers = enumerate(self.strategy.client.servers)
        return [
            *(CoordinatedTask("worker", index, workers[index]) for index in present),
            *(CoordinatedTask("ps", index, address) for index, address in servers),
        ]

    @property
    def present_workers(self) -> list[int]:
        """The indices of the connected workers."""
        with self._dispatcher.lock:
            return sorted(self._dispatcher.state.workers)

    def recover_servers_from(self, checkpoint_manager: CheckpointSource) -> None:
        """Enables recovery from the loss of parameter servers.

        A server that is restarted at the same address is empty. *All* variables in the checkpoint, on all
        servers, are then restored from the latest checkpoint of ``checkpoint_manager``, so that they are
        consistent, together with everything else in the checkpoint. ``schedule``, ``join`` and ``done``
        block meanwhile, for at most ``patience`` seconds; then they raise ``PSUnavailableError``.
        Functions that were running or queued when the server was lost run (again) afterwards.
        ``recoveries`` reports what was lost: the work since the checkpoint.

        A read, update or save by this process while a server is lost raises ``PSUnavailableError``; call
        ``join``, which waits, and retry.

        Every variable on the servers must be in the checkpoint; losing the server of one that is not is an
        error. Optimizer state that is not in the checkpoint starts from its initial value there.

        Args:
            checkpoint_manager: An ``sg.train.CheckpointManager``.

        Raises:
            ValueError: If it was called before.
        """
        if self._dispatcher.restorer is not None:
            raise InvalidArgumentError(
                "recover_servers_from must be called once for a coordinator, got a second call."
            )
        client = self.strategy.client
        restorer = ServerRestorer(
            self._dispatcher, client, checkpoint_manager, self._dispatcher.patience
        )
        self._checkpoint_manager = checkpoint_manager
        checkpoint_manager.after_saves(restorer.note_saved)
        client.on_server_lost = functools.partial(_lose, weakref.ref(restorer))
        self._dispatcher.restorer = restorer

    @property
    def recoveries(self) -> list[ServerRecovery]:
        """The recoveries from lost parameter servers, each with the work that was lost, oldest first."""
        restorer = self._dispatcher.restorer
        return [] if restorer is None else list(restorer.recoveries)

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        worker: int | None = None,
        priority: float = 0,
    ) -> RemoteValue:
        """Queues a function to run on a worker, and returns a future of its result.

        Blocks only while the queue is full: 256 functions per worker.

        Args:
            fn: A function, plain or ``sg.function``.
            args: Its positional arguments: any nest of picklable objects, per-worker datasets, iterators
                and values, and results of earlier calls.
            kwargs: Its keyword arguments.
            worker: The index of the worker to run it on; any worker if ``None``.
            priority: Functions with a higher priority start first; the default is 0.

        Raises:
            ShippingError: If the function or an argument cannot be pickled.
            Exception: The error of an earlier function; it is raised once, when no function runs.
        """
        if not callable(fn):
            raise InvalidArgumentError(f"fn must be a function, got {fn!r}.")
        workers = self.workers
        if worker is not None and worker not in workers:
            raise InvalidArgumentError(f"worker must be one of {workers}, got {worker!r}.")
        definition = self._dispatcher.definitions.of_function(fn)
        arguments = _pack_arguments(args, kwargs)
        allowed = _allowed_workers(arguments, worker, workers)
        value = self._dispatcher.schedule(definition, arguments, allowed, priority)
        value.keeps_alive = self
        return value

    def join(self) -> None:
        """Waits until every scheduled function has ended.

        Raises:
            Exception: The error of a function; it is raised once, when no function runs.
        """
        self._dispatcher.join()

    def done(self) -> bool:
        """Returns whether every scheduled function has ended.

        Raises:
            Exception: The error of a function; it is raised once, when no function runs.
        """
        return self._dispatcher.done()

    def fetch(self, val: PyTree) -> Any:
        """Returns a structure with every ``RemoteValue`` in it replaced by its result.

        Args:
            val: A ``RemoteValue``, or any nest of tuples, lists and dictionaries that contains some.

        Raises:
            CancelledError: If a function did not run because another one failed.
            Exception: The error of a function.
        """
        return jax.tree.map(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val
        )

    def create_per_worker_dataset(self, dataset_fn: Dataset) -> PerWorkerDataset:
        """Returns a dataset that each worker creates for itself, by calling a function.

        ``iter`` of it returns an iterator to pass to ``schedule``: the function gets the iterator of the
        worker that runs it. A worker that comes back after a failure starts from the beginning.

        Args:
            dataset_fn: A function without arguments that returns a ``Dataset``, a distributed dataset,
                or an iterable; or one of these, which is sent to every worker. A distributed dataset
                must be created by the coordinator's strategy; it is for the replicas of each worker.

        Raises:
            ValueError: If it is anything else.
            ShippingError: If it cannot be pickled.
        """
        return PerWorkerDataset(self, self._dispatcher.definitions, dataset_fn)

    def __repr__(self) -> str:
        return f"ClusterCoordinator({self.strategy!r})"


def _make_per_worker_variable(
    coordinator: weakref.ref[ClusterCoordinator], **options: Any
) -> PerWorkerVariable:
    """Returns a per-worker variable; the calling strategy keeps the coordinator alive."""
    known = coordinator()
    assert known is not None
    return PerWorkerVariable(known, known._dispatcher.definitions, **options)


def _lose(restorer: weakref.ref[ServerRestorer], server: int) -> None:
    known = restorer()
    if known is not None:
        known.lose(server)


def _pack_arguments(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Payload:
    if not args and not kwargs:
        return _NO_ARGUMENTS
    if not isinstance(args or (), Sequence) or isinstance(args, str | bytes):
        raise InvalidArgumentError(f"args must be a sequence, got {args!r}. Write args=(x,).")
    if not isinstance(kwargs or {}, Mapping):
        raise InvalidArgumentError(f"kwargs must be a dictionary, got {kwargs!r}.")
    positional, named = tuple(args or ()), dict(kwargs or {})
    try:
        return pack((positional, named))
    except Exception as error:
        parts = [(f"args[{index}]", value) for index, value in enumerate(positional)]
        parts += [(f"kwargs[{name!r}]", value) for name, value in named.items()]
        fix = "Pass plain data, or create it in the function."
        raise unpicklable_part_error(parts, error, fix) from error


def _allowed_workers(
    arguments: Payload, worker: int | None, workers: Sequence[int]
) -> frozenset[int] | None:
    """Returns which workers may run a function with these arguments; ``None`` for any."""
    allowed = None if worker is None else frozenset({worker})
    for reference in arguments.references:
        if isinstance(reference, PerWorkerValues):
            bound = reference.bind(workers)
            if allowed is not None and not allowed & bound:
                raise InvalidArgumentError(
                    f"A function must be able to run on a worker that has a value for it, got "
                    f"PerWorkerValues for the workers {sorted(bound)} where only {sorted(allowed)} may "
                    "run it. Create new PerWorkerValues, with one value for each worker."
                )
            allowed = bound if allowed is None else allowed & bound
    return allowed
