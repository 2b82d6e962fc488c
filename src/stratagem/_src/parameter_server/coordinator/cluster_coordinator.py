"""``ClusterCoordinator``: runs functions on the workers of a parameter-server cluster."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher
from stratagem._src.parameter_server.coordinator.per_worker import PerWorkerValues
from stratagem._src.parameter_server.coordinator.per_worker_dataset import PerWorkerDataset
from stratagem._src.parameter_server.coordinator.per_worker_variable import PerWorkerVariable
from stratagem._src.parameter_server.coordinator.periodic_checks import watch
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.coordinator.server_recovery import ServerRecovery
from stratagem._src.parameter_server.coordinator.server_restorer import (
    CheckpointSource,
    ServerRestorer,
)
from stratagem._src.parameter_server.protocol.shipping import Parcel, check_parts, pack
from stratagem._src.process.fork import at_exit
from stratagem._src.strategies.parameter_server import ParameterServerStrategy
from stratagem._src.transport import Credentials

__all__ = ["ClusterCoordinator", "DirectedTask", "directed_tasks"]

_NO_ARGUMENTS = pack(((), {}))

_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
_coordinators: weakref.WeakSet[ClusterCoordinator] = weakref.WeakSet()


@dataclass(frozen=True)
class DirectedTask:
    """A worker or parameter server of a coordinator in this process, and where it is."""

    job: str
    index: int
    address: str


def directed_tasks() -> list[DirectedTask]:
    """Returns the tasks of all coordinators in this process."""
    return [task for coordinator in list(_coordinators) for task in coordinator.tasks()]


@at_exit
def _stop_all() -> None:
    """Tells the workers that this process ends, so that they need not find out."""
    for dispatcher in list(_dispatchers):
        dispatcher.stop()


class ClusterCoordinator:
    """Schedules functions on the workers of a ``ParameterServerStrategy``, and survives their loss.

    There is one for each strategy: a second call returns the same.

    A function is sent to a worker once, with what it captured by then, and called by number from
    then on. A worker that is lost is replaced by the others: what it ran runs again elsewhere, so a
    function runs at least once. When it comes back, it is used again, and its per-worker datasets
    begin anew. A worker that the cluster resolver names only later is used from then on.

    If a function raises, functions that have not started are cancelled, and the error is raised from
    ``schedule``, ``join`` or ``done``, once, when everything that runs has ended. If a parameter
    server is lost, ``PSUnavailableError`` is raised from there and from ``fetch``, unless
    ``recover_servers_from`` was called.

    Differs from tf.distribute: several functions run on a worker at the same time, results can be
    arguments of other functions, functions can have a worker or a priority.

    Args:
        strategy: The strategy.
        closures_per_worker: How many functions a worker runs at the same time, so that one computes
            while another waits for a parameter server. Use 1 for functions that must not meet.
        worker_timeout: After how many seconds without an answer a worker or a parameter server counts as
            lost.
        patience: How many seconds to wait for a worker when there is none, and for parameter servers that
            ``recover_servers_from`` is to restore.

    Raises:
        ValueError: If ``strategy`` is of another kind.
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
        """Returns the coordinator of a strategy, made on the first call."""
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
                f"it was made with {known._options}."
            )
        return known

    def _begin(self, strategy: ParameterServerStrategy, options: Mapping[str, Any]) -> None:
        self.strategy = strategy
        self._options = options
        ownership = strategy.client.ownership
        dispatcher = Dispatcher(
            Credentials.from_environment(),
            pack(strategy),
            owner=ownership.owner,
            replaces=ownership.replaces,
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
        watch(dispatcher, strategy.client, strategy.cluster_resolver, timeout)

    @property
    def workers(self) -> list[int]:
        """The indices of the workers that the cluster resolver has named so far."""
        return self._dispatcher.workers

    def tasks(self) -> list[DirectedTask]:
        """Returns the workers that are there now, and the parameter servers."""
        present = self.present_workers
        workers = self._dispatcher.addresses()
        servers = enumerate(self.strategy.client.servers)
        return [
            *(DirectedTask("worker", index, workers[index]) for index in present),
            *(DirectedTask("ps", index, address) for index, address in servers),
        ]

    @property
    def present_workers(self) -> list[int]:
        """The indices of the workers that are there now."""
        with self._dispatcher.lock:
            return sorted(self._dispatcher.state.workers)

    def recover_servers_from(self, checkpoint_manager: CheckpointSource) -> None:
        """Lets training survive the loss of parameter servers, from now on.

        A server that is started again, at the same address, is empty. *All* variables in the checkpoint, on
        all servers, then go back to the last one that ``checkpoint_manager`` has saved, so that they belong
        together, and with them whatever else is in the checkpoint. ``schedule``, ``join`` and ``done`` see
        nothing of it but that it takes time: up to ``patience``, after which they raise
        ``PSUnavailableError``. Functions that ran or waited when the server was lost run (again)
        afterwards. ``recoveries`` says what was lost: the work since the checkpoint.

        What this process itself reads, updates or saves while a server is lost raises
        ``PSUnavailableError``; call ``join``, which waits, and do it again.

        Every variable on the servers must be in the checkpoint; if one is not, and its server is lost, that
        is an error. The state of an optimizer that is not in the checkpoint begins anew there.

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
        client.when_lost = functools.partial(_lose, weakref.ref(restorer))
        self._dispatcher.restorer = restorer

    @property
    def recoveries(self) -> list[ServerRecovery]:
        """What was recovered from the loss of parameter servers, and what was lost, oldest first."""
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
        """Queues a function to run on a worker, and returns its result-to-be without waiting for it.

        Waits only while the queue is full: 256 functions for each worker.

        Args:
            fn: A function, plain or ``sg.function``.
            args: Its positional arguments: anything that can be pickled, per-worker datasets,
                iterators and values, and results of earlier calls, all of them nested as one likes.
            kwargs: Its keyword arguments.
            worker: The index of the worker that is to run it. Any, if ``None``.
            priority: Functions with a higher priority start first; the default is 0.

        Raises:
            ShippingError: If the function, or an argument, cannot be sent to a worker.
            Exception: What an earlier function raised; it is raised once. No function runs then.
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
            Exception: What a function raised; it is raised once. No function runs then.
        """
        self._dispatcher.join()

    def done(self) -> bool:
        """Returns whether every scheduled function has ended.

        Raises:
            Exception: What a function raised; it is raised once. No function runs then.
        """
        return self._dispatcher.done()

    def fetch(self, val: Any) -> Any:
        """Returns a structure with every ``RemoteValue`` in it replaced by its result.

        Args:
            val: A ``RemoteValue``, or any nest of tuples, lists and dictionaries with some in it.

        Raises:
            CancelledError: If a function did not run because another one failed.
            Exception: What a function raised.
        """
        return jax.tree.map(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val
        )

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Returns a dataset that every worker makes for itself, by calling a function there.

        ``iter`` of it gives an iterator to pass to ``schedule``: the function gets the iterator of
        the worker that runs it. A worker that comes back after a failure begins anew.

        Args:
            dataset_fn: A function without arguments that returns a ``Dataset``, a distributed dataset,
                or an iterable; or one of these, which is sent to every worker. A distributed dataset
                must be the coordinator's own strategy's, and is for the replicas of each worker there.

        Raises:
            ValueError: If it is something else.
            ShippingError: If it cannot be sent to a worker.
        """
        return PerWorkerDataset(self, self._dispatcher.definitions, dataset_fn)

    def __repr__(self) -> str:
        return f"ClusterCoordinator({self.strategy!r})"


def _make_per_worker_variable(
    coordinator: weakref.ref[ClusterCoordinator], **options: Any
) -> PerWorkerVariable:
    """Returns a variable of a coordinator's workers; the strategy, which calls it, keeps that alive."""
    known = coordinator()
    assert known is not None
    return PerWorkerVariable(known, known._dispatcher.definitions, **options)


def _lose(restorer: weakref.ref[ServerRestorer], server: int) -> None:
    known = restorer()
    if known is not None:
        known.lose(server)


def _pack_arguments(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Parcel:
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
        fix = "Pass plain data, or make it in the function."
        raise check_parts(parts, error, fix) from error


def _allowed_workers(
    arguments: Parcel, worker: int | None, workers: Sequence[int]
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
                    "run it. Make new PerWorkerValues, with one value for each worker."
                )
            allowed = bound if allowed is None else allowed & bound
    return allowed
