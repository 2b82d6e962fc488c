"""``ClusterSpec``: the tasks of a cluster and their addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_def import ClusterDef, JobDef
from stratagem._src.cluster.errors import ClusterSpecError, TaskError
from stratagem._src.cluster.loopback import loopback_address

__all__ = ["ClusterSpec"]

TasksOfJob = Sequence[str] | Mapping[int, str]


class ClusterSpec:
    """The tasks of a cluster, grouped into jobs, each task with its address.

    A job is a list of addresses, or a mapping from task index to address if only some of the tasks are
    known. A ``ClusterSpec`` is immutable.

    >>> from stratagem.train import ClusterSpec
    >>> spec = ClusterSpec({"worker": ["w0:2222", "w1:2222"], "ps": {3: "ps3:2222"}})
    >>> spec.num_tasks("worker"), spec.task_address("worker", 1)
    (2, 'w1:2222')
    >>> spec.as_dict()
    {'worker': ['w0:2222', 'w1:2222'], 'ps': {3: 'ps3:2222'}}

    Differs from tf.distribute: malformed and duplicate addresses are rejected here, not when a server
    starts.

    Args:
        cluster: Job names to lists or mappings of addresses, another ``ClusterSpec``, or a
            ``ClusterDef``.

    Raises:
        TypeError: If ``cluster``, a job, its tasks or an address is of the wrong type.
        ClusterSpecError: If a job name is empty, a task index negative, an address malformed, or two
            tasks have the same one.
    """

    def __init__(self, cluster: Mapping[str, TasksOfJob] | ClusterSpec | ClusterDef) -> None:
        if isinstance(cluster, ClusterSpec):
            self._jobs: dict[str, dict[int, str]] = cluster._jobs
        elif isinstance(cluster, ClusterDef):
            self._jobs = {job.name: _tasks(job.name, job.tasks) for job in cluster.job}
        elif isinstance(cluster, Mapping):
            self._jobs = {name: _tasks(name, tasks) for name, tasks in cluster.items()}
        else:
            raise TypeError(
                "cluster must be a dictionary from job names to addresses, a ClusterSpec or a "
                f"ClusterDef, got {type(cluster).__name__}."
            )

        _check_addresses_differ(self._jobs)

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, in the given order."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """Returns the number of known tasks of a job."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the indices of the known tasks of a job, in ascending order."""
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the address of one task.

        Raises:
            TaskError: If there is no such job or task.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise TaskError(
                f"task_index must be a task of job {job_name!r}, got {task_index!r}. "
                f"Its tasks are {list(tasks)}."
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Returns a job's addresses as a list, with ``None`` for unknown tasks."""
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns the jobs as lists of addresses, or as mappings if tasks are missing."""
        return {
            name: list(tasks.values()) if _is_dense(tasks) else dict(tasks)
            for name, tasks in self._jobs.items()
        }

    def as_cluster_def(self) -> ClusterDef:
        """Returns the cluster as plain data, jobs sorted by name."""
        return ClusterDef(
            tuple(JobDef(name, dict(tasks)) for name, tasks in sorted(self._jobs.items()))
        )

    def _job(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise TaskError(
                f"job_name must be a job of this cluster, got {job_name!r}. "
                f"Its jobs are {self.jobs}."
            )
        return self._jobs[job_name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset((name, tuple(tasks.items())) for name, tasks in self._jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterSpec({dict(sorted(self.as_dict().items()))})"


def _check_addresses_differ(jobs: Mapping[str, Mapping[int, str]]) -> None:
    """Raises if two tasks have the same address: the second could not listen, and all would wait."""
    found: dict[Address, str] = {}
    for job_name, tasks in jobs.items():
        for index, text in tasks.items():
            address = Address.parse(text)
            if not address.port:  # the operating system chooses a free port
                continue
            host = loopback_address(address.host) or address.host.lower()
            task = f"{job_name} {index}"
            other = found.setdefault(Address(host, address.port), task)
            if other != task:
                raise ClusterSpecError(
                    f"Every task must have its own address, got {text!r} for {other} and for "
                    f"{task}. Give one of them another port."
                )


def _is_dense(tasks: Mapping[int, str]) -> bool:
    return bool(tasks) and max(tasks) + 1 == len(tasks)


def _tasks(job_name: object, tasks: object) -> dict[int, str]:
    if not isinstance(job_name, str):
        raise TypeError(f"A job name must be a string, got {job_name!r}.")
    if not job_name:
        raise ClusterSpecError("A job name must not be empty, got ''.")
    if isinstance(tasks, Mapping):
        numbered = {_task_index(job_name, index): task for index, task in tasks.items()}
    elif isinstance(tasks, Sequence) and not isinstance(tasks, str | bytes):
        numbered = dict(enumerate(tasks))
    else:
        raise TypeError(
            f"The tasks of job {job_name!r} must be a list of addresses or a dictionary from task "
            f"index to address, got {tasks!r}."
        )
    return {index: _address(job_name, index, numbered[index]) for index in sorted(numbered)}


def _task_index(job_name: str, index: object) -> int:
    # The keys of JSON objects are strings.
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) <= 9:
        return int(index)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ClusterSpecError(
            f"A task index of job {job_name!r} must be a whole number >= 0, got {index!r}."
        )
    return index


def _address(job_name: str, index: int, address: object) -> str:
    if not isinstance(address, str):
        raise TypeError(
            f"The address of task {index} of job {job_name!r} must be a string, got {address!r}."
        )
    try:
        Address.parse(address)
    except ClusterSpecError as error:
        raise ClusterSpecError(f"Task {index} of job {job_name!r}: {error}") from None
    return address
