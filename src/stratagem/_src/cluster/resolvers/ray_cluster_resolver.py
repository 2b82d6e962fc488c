"""``RayClusterResolver``: Ray actors that find each other through a named actor."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import CloudError, TaskError
from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.ray_module import load_ray
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.core.waiting_notice import WaitingNotice

__all__ = ["RayClusterResolver"]

_POLL_INTERVAL = 0.1
_books: list[Any] = []
_log = logging.getLogger("stratagem")


class RayClusterResolver(ClusterResolver):
    """A resolver for tasks that are Ray actors or Ray tasks.

    Each task creates one with its own type and id. When the cluster spec is requested, the resolver
    registers its address with an actor that is named after the group, and waits until all tasks have
    registered. Needs ``stratagem[ray]``.

    >>> from stratagem.distribute.cluster_resolver import RayClusterResolver
    >>> resolver = RayClusterResolver({"worker": 2}, task_type="worker", task_id=1)
    >>> resolver.task_type, resolver.task_id
    ('worker', 1)

    Args:
        jobs: The number of tasks of each job.
        task_type: The job of this task.
        task_id: The index of this task in its job.
        group: The name that the tasks of one cluster share; each cluster needs its own.
        timeout: Seconds within which all tasks must register.

    Raises:
        TaskError: If there is no such task.
    """

    def __init__(
        self,
        jobs: Mapping[str, int],
        task_type: str,
        task_id: int,
        group: str = "stratagem",
        timeout: float = 300.0,
    ) -> None:
        if not 0 <= task_id < jobs.get(task_type, 0):
            raise TaskError(f"{task_type} {task_id} must be a task of jobs, got {dict(jobs)}.")
        self._jobs = dict(jobs)
        self._task_type = task_type
        self._task_id = task_id
        self._group = group
        self._timeout = timeout
        self._port: ReservedPorts | None = None
        self._spec: ClusterSpec | None = None

    def cluster_spec(self) -> ClusterSpec:
        """Returns the addresses of all tasks, once all have registered.

        Raises:
            CloudError: If tasks do not register in time; it names them.
            ImportError: If Ray is not installed.
        """
        if self._spec is None:
            self._spec = self._rendezvous()
        return self._spec

    def _rendezvous(self) -> ClusterSpec:
        ray = load_ray("RayClusterResolver")
        # Reserved, so that no other process gets the port before this task listens.
        host = ray.util.get_node_ip_address()
        self._port = ReservedPorts(1, host)
        try:
            return self._register(ray, Address(host, *self._port))
        except CloudError:
            self._port.close()
            raise

    def _register(self, ray: ModuleType, own: Address) -> ClusterSpec:
        address = str(own)
        book = _address_book(ray, self._group)
        mine = (self._task_type, self._task_id)
        deadline = time.monotonic() + self._timeout
        known: dict[Any, str] = ray.get(book.write.remote(mine, address))
        wanted = [Task(job, index) for job, number in self._jobs.items() for index in range(number)]
        notice = WaitingNotice()
        while missing := [task for task in wanted if tuple(task) not in known]:
            if time.monotonic() > deadline:
                raise CloudError(
                    f"Every task of group {self._group!r} must register within {self._timeout:g} s, but "
                    f"{', '.join(map(str, missing))} did not. Start them with the same group and jobs."
                )
            if notice.is_due():
                names = ", ".join(map(str, missing))
                _log.warning("%s %d waits for %s (%.0f s)", *mine, names, notice.seconds)
            time.sleep(_POLL_INTERVAL)
            known = ray.get(book.read.remote())
        return ClusterSpec(
            {job: [known[(job, i)] for i in range(number)] for job, number in self._jobs.items()}
        )


def _address_book(ray: ModuleType, group: str) -> Any:
    """Returns the actor with the addresses of a group; the first caller creates it."""
    name = f"stratagem-addresses-{group}"
    book = ray.remote(_AddressBook).options(name=name, get_if_exists=True, num_cpus=0).remote()
    # The actor lives as long as its creator holds a reference: other tasks may still have to read it.
    _books.append(book)
    return book


class _AddressBook:
    """The addresses of the tasks of a group, in a Ray actor."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}

    def write(self, task: tuple[str, int], address: str) -> dict[tuple[str, int], str]:
        self._known[task] = address
        return self._known

    def read(self) -> dict[tuple[str, int], str]:
        return self._known
