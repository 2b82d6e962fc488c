"""``diagnose``: checks whether this process can train here, and reports problems."""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import time
from collections.abc import Iterator

import jax
import numpy as np

from stratagem._src.cli.peers import reach_peers
from stratagem._src.cli.scheduler_report import scheduler_report
from stratagem._src.cluster.errors import UnknownAddressesError
from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.resolve import resolve_cluster
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import StratagemError
from stratagem._src.core.terminal_text import printable
from stratagem._src.core.version import __version__
from stratagem._src.execution.function import function
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.current import get_replica_context
from stratagem._src.strategies.mirrored import MirroredStrategy
from stratagem._src.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy

__all__ = ["diagnose"]

_PACKAGES = ("jax", "jaxlib", "numpy", "cloudpickle")
_MEGABYTES = 4
_REPEATS = 5


def diagnose(timeout: float) -> int:
    """Prints versions, devices and the cluster; returns the exit code, 0 without problems.

    Args:
        timeout: How long to try to reach other tasks.
    """
    _print_versions()
    for line in scheduler_report():
        _print(f"scheduler: {line}")
    problems = []
    # The cluster first: JAX cannot join other processes after its devices have been listed.
    for problem in itertools.chain(_check_cluster(timeout), _check_devices()):
        _print(f"  problem: {problem}")
        problems.append(problem)
    if problems:
        noun = "problem" if len(problems) == 1 else "problems"
        _print(f"verdict: {len(problems)} {noun}: {'; '.join(problems)}")
        return 1
    _print("verdict: all is well")
    return 0


def _print(text: str) -> None:
    print(printable(text), flush=True)


def _print_versions() -> None:
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    _print(f"versions: stratagem {__version__}, python {platform.python_version()}, {found}")


def _check_devices() -> Iterator[str]:
    try:
        devices = jax.local_devices()
    except RuntimeError as error:
        yield f"JAX finds no devices ({error})"
        return
    _print(f"devices: {len(devices)} {devices[0].device_kind} ({devices[0].platform})")
    yield from _check_all_reduce(MirroredStrategy(devices), "between the devices")


def _check_cluster(timeout: float) -> Iterator[str]:
    try:
        found = resolve_cluster()
        if found.resolver is None:
            _print(f"cluster: none, because {found.reason}")
            return
        _print(f"cluster: {type(found.resolver).__name__}, because {found.reason}")
        yield from _tasks(found.resolver, timeout)
    except StratagemError as error:
        yield str(error)


def _tasks(resolver: ClusterResolver, timeout: float) -> Iterator[str]:
    try:
        spec = resolver.cluster_spec()
    except UnknownAddressesError:
        _print(
            f"  this is process {_process(resolver)}; coordinator {resolver.coordinator_address}"
        )
        yield from _check_workers(resolver, timeout)
        return
    if resolver.task_type is None or resolver.task_id is None:
        yield "the cluster specification does not say which task this process is"
        return
    me = Task(resolver.task_type, resolver.task_id)
    _print(
        f"  this is {me}, process {_process(resolver)}; coordinator {resolver.coordinator_address}"
    )
    addresses = {
        Task(job, index): spec.task_address(job, index)
        for job in spec.jobs
        for index in spec.task_indices(job)
    }
    mine = addresses.pop(me, None)
    errors = reach_peers(mine, addresses, timeout)
    for task, error in errors.items():
        _print(f"  {task} at {addresses[task]}: {error or 'responds'}")
    unreachable = [str(task) for task, error in errors.items() if error]
    if unreachable:
        _print(
            "  next: check that these tasks are running, that their host names resolve to the same "
            "machines everywhere, and that no firewall blocks the connection"
        )
        yield f"cannot reach {', '.join(unreachable)}"
    elif resolver.task_type in ("chief", "worker") and resolver.num_processes > 1:
        yield from _check_workers(resolver, timeout)


def _check_workers(resolver: ClusterResolver, timeout: float) -> Iterator[str]:
    limit = CommunicationOptions(timeout_seconds=timeout)
    strategy = MultiWorkerMirroredStrategy(resolver, limit)
    yield from _check_all_reduce(strategy, "between all workers")


def _process(resolver: ClusterResolver) -> str:
    if resolver.task_type == "ps":
        return "none, because it does not train"
    return f"{resolver.process_id} of {resolver.num_processes}"


def _check_all_reduce(strategy: Strategy, between: str) -> Iterator[str]:
    values = strategy.experimental_distribute_values_from_function(
        lambda _: np.ones(_MEGABYTES * 2**18, np.float32)
    )

    @function
    def all_reduce(x: object) -> object:
        def replica_fn(x: object) -> object:
            return get_replica_context().all_reduce("SUM", x)

        return strategy.run(replica_fn, args=(x,))

    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        reduced = strategy.experimental_local_results(all_reduce(values))
        jax.block_until_ready(reduced)
        seconds.append(time.perf_counter() - start)
    _print(f"  all-reduce of {_MEGABYTES} MB {between} in {min(seconds) * 1e3:.2f} ms")
    if any((np.asarray(part) != strategy.num_replicas_in_sync).any() for part in reduced):
        yield f"an all-reduce {between} returned a wrong sum"
