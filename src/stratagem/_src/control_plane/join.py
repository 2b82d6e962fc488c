"""``join_cluster``: connects the processes of a cluster: rendezvous, failure detection, JAX's devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import RendezvousError, UnknownAddressesError
from stratagem._src.cluster.leadership import worker_tasks
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.collective_backends.backend_selection import arrays_are_encrypted, open_backend
from stratagem._src.collective_backends.hosts.multi_host_backend import MultiHostBackend
from stratagem._src.collective_backends.shared_memory.ffi_collectives import use_collective_backend
from stratagem._src.control_plane.array_hosts import HostOffer, choose_host, offer_of
from stratagem._src.control_plane.failure_detector import FailureDetector
from stratagem._src.control_plane.membership_client import MembershipClient
from stratagem._src.control_plane.membership_server_process import MembershipServerProcess
from stratagem._src.control_plane.relay import Relay
from stratagem._src.core.errors import ContextError, UnauthenticatedError, UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.jax_compat import distributed_runtime as jax_runtime
from stratagem._src.mesh.backend_start import prepare_backend
from stratagem._src.mesh.devices import name_processes
from stratagem._src.mesh.process_monitor import set_process_monitor
from stratagem._src.process.exit_code import exit_code, uncaught_exception
from stratagem._src.process.fork import at_exit, run_in_child
from stratagem._src.process.hard_exit import HardExit
from stratagem._src.transport import Credentials

__all__ = [
    "DEFAULT_TIMEOUT_SECONDS",
    "JoinedCluster",
    "WorkerName",
    "hosts_of",
    "join_cluster",
    "joined_cluster",
    "leave_at_exit",
    "leave_cluster",
    "name_workers",
    "rendezvous",
]

_POLL_SECONDS = 0.25
_log = logging.getLogger("stratagem")
_GAVE_UP = "it gave up waiting for the others to start"


@dataclass(frozen=True)
class WorkerName:
    """The name of a worker: its job, its index in the job, and its address if known."""

    job: str
    index: int
    address: str | None = None

    def __str__(self) -> str:
        where = "" if self.address is None else f" ({self.address})"
        return f"{self.job} {self.index}{where}"


@dataclass(frozen=True)
class JoinedCluster:
    """The cluster of data-parallel workers that this process has joined."""

    workers: tuple[WorkerName, ...]
    process_id: int
    watch: FailureDetector
    server_process: MembershipServerProcess | None = None


_joined: JoinedCluster | None = None
_stuck: list[FailureDetector] = []
"""Failure detectors of clusters that this process has left, with programs that never finished."""

_hard_exit: HardExit | None = None


def joined_cluster() -> JoinedCluster | None:
    """Returns the cluster that this process has joined, if any."""
    return _joined


DEFAULT_TIMEOUT_SECONDS = 300.0


def join_cluster(
    resolver: ClusterResolver, timeout: float | None = None, *, platform: str | None = None
) -> JoinedCluster:
    """Joins the workers of a cluster. A process can join only one.

    Args:
        resolver: The resolver of the cluster.
        timeout: Seconds until all workers must have started, and that a program may later wait for the
            others; default 300.
        platform: Wait for programs as on this platform; default: the platform of the devices.

    Raises:
        UnavailableError: If some workers do not start in time; the message names them.
        BackendStartedError: If the JAX backend is already initialized.
        ContextError: If this process has joined another cluster.
    """
    timeout = timeout or DEFAULT_TIMEOUT_SECONDS
    workers, process_id = name_workers(resolver)
    if _joined is not None:
        if (_joined.workers, _joined.process_id) != (workers, process_id):
            raise ContextError(
                "A process can join one cluster: this one has joined that of "
                f"{', '.join(map(str, _joined.workers))}, and cannot also join that of "
                f"{', '.join(map(str, workers))}. Start another process for the other cluster."
            )
        _joined.watch.check_usable()
        _joined.watch.timeout = timeout
        return _joined
    jax_runtime.check_not_started()
    leader = resolver.coordinator_address
    assert leader is not None  # with several processes there is one
    coordinator = Address.parse(leader)
    credentials = Credentials.from_environment()
    host = None
    if process_id == 0:
        host = MembershipServerProcess(coordinator, len(workers), credentials, hosts_of(workers))
    return rendezvous(
        workers,
        process_id,
        coordinator,
        credentials,
        host,
        timeout,
        local_device_ids=resolver.local_device_ids,
        platform=platform,
    )


def rendezvous(
    workers: tuple[WorkerName, ...],
    process_id: int,
    coordinator: Address,
    credentials: Credentials,
    host: MembershipServerProcess | None,
    timeout: float,
    *,
    local_device_ids: Sequence[int] | None = None,
    platform: str | None = None,
    server_rank: int = 0,
    find_ended: Callable[[int], bool] = lambda _: False,
) -> JoinedCluster:
    """Waits for all workers at the membership server, and initializes JAX with the devices of all of them.

    Args:
        workers: The workers in rank order.
        process_id: The rank of this process.
        coordinator: The address of the membership server.
        credentials: The credentials of the cluster.
        host: The membership server process, if this process has started it.
        timeout: As in ``join_cluster``.
        local_device_ids: The GPUs of the machine that this process may use; default all.
        platform: As in ``join_cluster``.
        server_rank: The rank of the worker that has started the membership server.
        find_ended: Returns whether a worker that has not joined is known to have ended.

    Raises:
        UnavailableError: If some workers do not start in time; the message names them.
    """
    global _joined
    prepare_backend()
    deadline = time.monotonic() + timeout
    client = _connect(
        coordinator, process_id, workers, credentials, timeout, lambda: find_ended(server_rank)
    )
    start = _wait_for_all(client, workers, process_id, server_rank, deadline, timeout, find_ended)
    names = [str(worker) for worker in workers]
    watch = FailureDetector(client, process_id, names, timeout, server_rank=server_rank)
    watch.on_stuck(leave_at_exit().observe)
    hosted = start["hosted"]
    _joined = JoinedCluster(workers, process_id, watch, host)
    array_host = _agree_on_host(watch, client, workers[process_id], process_id, server_rank)
    watch.start_together(
        "the start of JAX",
        lambda: jax_runtime.connect(
            Relay(coordinator, credentials, process_id).address
            if hosted
            else str(Address(coordinator.host, start["service_port"])),
            len(workers),
            process_id,
            local_device_ids=local_device_ids,
            hosted=hosted,
            # Longer than ours: JAX aborts the process when its own timeout expires, and names no worker.
            timeout=timeout + 1.0,
            host=array_host,
        ),
    )
    watch.use_platform(platform or jax.default_backend())
    _open_collective_backend(watch, process_id, [str(w) for w in workers], array_host, credentials)
    set_process_monitor(watch)
    name_processes([(worker.job, worker.index) for worker in workers])
    return _joined


def _agree_on_host(
    watch: FailureDetector,
    client: MembershipClient,
    worker: WorkerName,
    process_id: int,
    server_rank: int,
) -> str | None:
    """Returns the address of this machine at which XLA listens for collectives of other processes."""
    named = None if worker.address is None else Address.parse(worker.address).host
    offers = watch.all_gather_object(
        "hosts",
        offer_of(named, client.own_host, client.server_host),
        "the choice of addresses for arrays",
    )
    return choose_host(process_id, [HostOffer.from_json(offer) for offer in offers], server_rank)


def _open_collective_backend(
    watch: FailureDetector,
    process_id: int,
    names: Sequence[str],
    array_host: str | None,
    credentials: Credentials,
) -> None:
    # These collectives need the same order on all workers. Only a platform on which one program ends before
    # the next begins (CPU) gives that.
    if len(names) == 1 or not watch.waits_for_programs:
        return
    try:
        backend = open_backend(
            process_id,
            names,
            array_host,
            credentials,
            lambda said: watch.all_gather_object("arrays", said, "the exchange of arrays"),
            is_encrypted=arrays_are_encrypted(),
            timeout=watch.timeout,
        )
    except UnavailableError as error:
        # All workers raise this error, and none can use the cluster any more. So each one gives it up
        # itself, and does not wait until it sees that another has.
        if not watch.has_failed:
            watch.fail(error)
        raise
    if backend is not None:
        watch.on_give_up(backend.abort)
    if isinstance(backend, MultiHostBackend):
        watch.monitor_connections(backend.unacknowledged_seconds)
    use_collective_backend(backend)


def leave_cluster() -> None:
    """Leaves the cluster, to join another one in the same process; a no-op outside a cluster."""
    global _joined
    joined, _joined = _joined, None
    if joined is None:
        return
    joined.watch.abandon()
    use_collective_backend(None)
    if joined.watch.is_stuck():
        _stuck.append(joined.watch)
    if joined.server_process is not None:
        joined.server_process.release()


def leave_at_exit() -> HardExit:
    """Makes this process leave the cluster at exit; returns the ``HardExit`` that decides how it exits."""
    global _hard_exit
    if _hard_exit is None:
        _hard_exit = HardExit(_is_stuck)
        # JAX closes its devices at exit too. atexit runs handlers in reverse order, so this one runs first.
        at_exit(_leave, _hard_exit)
    return _hard_exit


@run_in_child
def _leave_to_the_parent() -> None:
    global _joined, _hard_exit
    _joined = _hard_exit = None
    _stuck.clear()


def _is_stuck() -> bool:
    watches = _stuck if _joined is None else [*_stuck, _joined.watch]
    return any(watch.is_stuck() for watch in watches)


def name_workers(resolver: ClusterResolver) -> tuple[tuple[WorkerName, ...], int]:
    """Returns the workers of a cluster in rank order, and the rank of this one."""
    try:
        spec = resolver.cluster_spec()
    except UnknownAddressesError:
        count, process_id = resolver.num_processes, resolver.process_id
        return tuple(WorkerName("worker", index) for index in range(count)), process_id
    workers = tuple(
        WorkerName(job, index, spec.task_address(job, index)) for job, index in worker_tasks(spec)
    )
    return workers, resolver.process_id


def hosts_of(workers: Iterable[WorkerName]) -> list[str]:
    """Returns the known hosts of workers."""
    return [Address.parse(worker.address).host for worker in workers if worker.address is not None]


def _connect(
    coordinator: Address,
    process_id: int,
    workers: tuple[WorkerName, ...],
    credentials: Credentials,
    timeout: float,
    is_ended: Callable[[], bool],
) -> MembershipClient:
    try:
        return MembershipClient(
            coordinator, process_id, len(workers), credentials, timeout, is_ended
        )
    except UnavailableError as error:
        raise UnavailableError(
            f"{workers[process_id]} waited {timeout:g} s for the leader {workers[0]} at {coordinator}, "
            f"but it does not respond ({error}). Start it, and check its address and the firewall."
        ) from None
    except (RendezvousError, UnauthenticatedError) as error:
        raise UnavailableError(f"{workers[process_id]} cannot join the cluster. {error}") from None


def _wait_for_all(
    client: MembershipClient,
    workers: tuple[WorkerName, ...],
    process_id: int,
    server_rank: int,
    deadline: float,
    timeout: float,
    find_ended: Callable[[int], bool],
) -> dict[str, Any]:
    def give_up(what: str) -> NoReturn:
        client.leave(_GAVE_UP)
        raise UnavailableError(
            f"{workers[process_id]} waited for all workers to start, but {what}."
        )

    notice = WaitingNotice()
    while client.start is None:
        client.wait_for_change(lambda: client.start is not None or client.is_lost, _POLL_SECONDS)
        if client.start is not None:
            break
        views = client.views()
        if notice.is_due():
            missing = [str(w) for w, view in zip(workers, views, strict=True) if view.absent]
            _log.warning(
                "%s waits for %s to start (%.0f s of %g)",
                workers[process_id],
                ", ".join(missing),
                notice.seconds,
                timeout,
            )
        # A worker that is late for one is late for all: no one waits for the rest of its own timeout.
        others_gave_up = any(view.left == _GAVE_UP for view in views)
        if time.monotonic() > deadline or others_gave_up:
            absent = [str(w) for w, view in zip(workers, views, strict=True) if view.absent]
            give_up(
                f"{', '.join(absent)} did not start within {timeout:g} s. Start the same program there"
            )
        for number, (worker, view) in enumerate(zip(workers, views, strict=True)):
            if view.absent and find_ended(number):
                give_up(f"{worker} is gone: its process has ended")
            if view.gone or view.left is not None:
                give_up(f"{worker} has left again: {view.left or 'it was killed or crashed'}")
        if client.is_disconnected:
            give_up(f"{workers[server_rank]} is gone: it was killed or crashed")
        if client.is_lost:
            give_up(
                f"{workers[server_rank]} has sent no heartbeat for {client.heartbeat_age:.0f} s: its host "
                "is off or hangs, or the network is down"
            )
    return client.start


def _leave(hard_exit: HardExit) -> None:
    failure = _failure_of_program()
    joined = _joined
    if joined is not None:
        # Only a worker that ends well waits for the others to end too. After a failure the others should
        # learn of it now: they may be waiting for this worker.
        is_fine = failure is None and not joined.watch.has_failed
        wait_seconds = joined.watch.timeout if is_fine else 0
        joined.watch.leave(failure or "its program ended", wait_seconds=wait_seconds)
    if hard_exit.decide():
        jax_runtime.abandon()
    else:
        jax_runtime.disconnect()
    if joined is not None and joined.server_process is not None:
        joined.server_process.release()


def _failure_of_program() -> str | None:
    error = uncaught_exception()
    if error is not None:
        return f"its program failed with {error!r}"
    code = exit_code()
    return f"its program ended with exit code {code}" if code else None
