"""``OneTaskBackend``: runs one task of a job; another launcher starts the other tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.resolve import resolve_cluster
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.resolvers.tf_config_cluster_resolver import TFConfigClusterResolver
from stratagem._src.launcher.backends.backend import description_text, task_program
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_job import run_rendezvous_job
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.transport import Credentials
from stratagem._src.transport.secret import read_secret

__all__ = ["BY_RANK", "OneTaskBackend", "restrict_gpus"]

BY_RANK = "by-rank"
_CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class OneTaskBackend:
    """Runs one task of a job as its own node.

    The description covers the whole job and is the same in every process. Ranks go to the chief, the
    workers, the parameter servers and the evaluator, in this order.

    Attributes:
        task: The task, such as ``worker:1``, or ``by-rank`` for the rank that ``srun``, ``mpirun`` or
            ``torchrun`` assigned to this process.
        endpoint: The address of node 0; empty for the address of rank 0 from the same launcher.
        timeout_seconds: How long nodes wait for each other.
        own_host: The host at which the others reach this task; empty to detect it.
        is_led: Whether node 0 is a launcher without tasks, and the tasks are the nodes after it.
    """

    task: str
    endpoint: str = ""
    timeout_seconds: float = 300.0
    own_host: str = ""
    is_led: bool = False

    def preview(self, job: JobDescription) -> str:
        """Returns the task and the description of the job."""
        place = self._place(job)
        return f"# {place.task}, with the rendezvous at {place.endpoint}\n{description_text(job)}"

    def run(self, job: JobDescription, console: Console) -> int:
        """Runs the task, coordinated with the others, and returns the exit code of the job."""
        place = self._place(job)
        program = task_program(job)
        if place.resolver is not None:
            device_ids = place.resolver.local_device_ids
            program = replace(program, environment=restrict_gpus(device_ids, program.environment))
        read_secret()  # raises if there is none: certificates alone are not sufficient here
        tasks = list(job.all_tasks())
        node = tasks.index(place.task) + self.is_led
        rendezvous = Rendezvous(
            place.endpoint,
            len(tasks) + self.is_led,
            node,
            self.timeout_seconds,
            Credentials.from_environment(),
            (*["the launcher"] * self.is_led, *map(str, tasks)),
            self.own_host or None,
            # A scheduler that assigns host names, as Kubernetes does, restarts a task under its name.
            nodes_are_restarted=bool(self.own_host),
        )
        if node > 0:  # only node 0 writes the launcher's messages
            console = Console(sys.stdout, sys.stderr, speaks=False)
        counts = TaskCounts.of_one(place.task.task_type)
        result = run_rendezvous_job(
            rendezvous, counts, program, console, SignalPipe(), job.rules, job.monitoring
        )
        return result.exit_code

    def _place(self, job: JobDescription) -> _Place:
        tasks = list(job.all_tasks())
        resolver = None
        if self.task == BY_RANK:
            resolver = _launcher_resolver()
            if resolver.num_processes != len(tasks):
                raise LaunchError(
                    f"The job must have as many tasks as there are processes, got {len(tasks)} tasks "
                    f"({', '.join(map(str, tasks))}) and {resolver.num_processes} processes. Change "
                    "--chief, --workers, --ps and --evaluator, or the number of processes."
                )
            task = tasks[resolver.process_id]
        else:
            task = _parse_task(self.task, tasks)
        if not self.endpoint and resolver is None:
            raise LaunchError(
                f"--task {self.task} needs --rdzv-endpoint, the host and port at which {tasks[0]} listens."
            )
        endpoint = self.endpoint or (resolver.coordinator_address if resolver else None)
        assert endpoint is not None
        return _Place(task, Address.parse(endpoint), resolver)


@dataclass(frozen=True)
class _Place:
    task: Task
    endpoint: Address
    resolver: ClusterResolver | None


def _launcher_resolver() -> ClusterResolver:
    found = resolve_cluster()
    if found.resolver is None or isinstance(found.resolver, TFConfigClusterResolver):
        variable = "TF_CONFIG is set" if os.environ.get("TF_CONFIG") else found.reason
        raise LaunchError(
            f"--task {BY_RANK} needs a rank from srun, mpirun or torchrun, but {variable}. Start this "
            "command with one of them, or name the task, as in --task worker:0."
        )
    return found.resolver


def _parse_task(text: str, tasks: list[Task]) -> Task:
    job, _, index = text.partition(":")
    task = Task(job, int(index)) if index.isascii() and index.isdigit() else None
    if task not in tasks:
        names = ", ".join(f"{task.task_type}:{task.task_id}" for task in tasks)
        raise LaunchError(f"--task must be {BY_RANK} or one of {names}, got {text!r}.")
    return task


def restrict_gpus(
    device_ids: Sequence[int] | None, environment: Mapping[str, str]
) -> Mapping[str, str]:
    """Returns an environment in which only these of the visible GPUs are visible; ``None`` for all.

    >>> from stratagem._src.launcher.backends.one_task import restrict_gpus
    >>> restrict_gpus([1], {"CUDA_VISIBLE_DEVICES": "4,5"})
    {'CUDA_VISIBLE_DEVICES': '5'}
    >>> restrict_gpus([1], {})
    {'CUDA_VISIBLE_DEVICES': '1'}
    """
    if device_ids is None:
        return environment
    visible = environment.get(_CUDA_DEVICES, "")
    names = visible.split(",") if visible else []
    if names and max(device_ids, default=0) >= len(
        names
    ):  # the launcher has restricted the GPUs already
        return environment
    chosen = [names[device] if names else str(device) for device in device_ids]
    return {**environment, _CUDA_DEVICES: ",".join(chosen)}
