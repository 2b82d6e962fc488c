"""``run``: calls a function in every task of a cluster of Ray actors."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import cloudpickle

from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.ray_module import load_ray
from stratagem._src.core.errors import UnavailableError
from stratagem._src.integrations.ray.task_actor import TaskActor
from stratagem._src.launcher.cluster_plan import ClusterPlan, NodeOffer, plan_cluster
from stratagem._src.launcher.completion import can_be_replaced, job_is_done
from stratagem._src.launcher.ray_placement import RayPlacement
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources
from stratagem._src.transport.secret import new_secret

__all__ = ["run"]

_POLL_INTERVAL = 1.0


def run(
    fn: Callable[..., Any],
    workers: int = 1,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    chief: bool = False,
    ps: int = 0,
    cpus_per_task: int = 1,
    gpus_per_worker: int | None = None,
    datasets: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    max_worker_restarts: int = 10,
    start_timeout: float = 300.0,
) -> list[Any]:
    """Calls a function in every task of a new cluster of Ray actors and returns the results.

    The tasks are actors in one placement group, on the Ray cluster that this program is connected to, or
    on a new local one. Each has ``TF_CONFIG`` and a secret, so that a strategy finds the other tasks. If a
    task fails, the others are stopped and its exception is raised. In a job with a chief and parameter
    servers, Ray restarts a worker that dies, which then calls the function again.

    Every dataset is split between the workers; each reads its shard with ``get_dataset_shard``. Needs
    ``stratagem[ray]``.

    >>> from stratagem.integrations import ray
    >>> ray.run(print, workers=-1)
    Traceback (most recent call last):
    stratagem.errors.LaunchError: workers must be an integer >= 0, got -1.

    Args:
        fn: The function that every task calls.
        workers: The number of workers.
        args: Arguments of ``fn``.
        kwargs: Keyword arguments of ``fn``.
        chief: Whether to add a chief to the workers.
        ps: The number of parameter servers. They are stopped when the other tasks are done.
        cpus_per_task: The number of CPUs that Ray reserves for each task.
        gpus_per_worker: The number of GPUs that Ray reserves for each worker.
        datasets: Ray Data datasets, by name.
        env: Environment variables of the tasks.
        max_worker_restarts: The maximum number of restarts of a worker.
        start_timeout: Seconds within which Ray must place all tasks.

    Returns:
        The results: the chief's, the workers', the parameter servers'. ``None`` for a task that was
        stopped because the job was done.

    Raises:
        UnavailableError: If Ray cannot place the tasks, or a task is lost permanently.
        ImportError: If Ray is not installed.
    """
    counts = TaskCounts(workers, ps, chief)
    counts.check_not_empty()
    ray = load_ray("integrations.ray.run")
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=True)
    resources = TaskResources(cpus=cpus_per_task, gpus=gpus_per_worker)
    call = cloudpickle.dumps((fn, args, dict(kwargs or {})))
    with RayPlacement(ray, counts, resources, start_timeout) as placement:
        job = _RayJob(ray, placement, counts, max_worker_restarts)
        return job.run(call, dict(env or {}), _split(datasets or {}, workers))


def _split(datasets: Mapping[str, Any], workers: int) -> list[dict[str, Any]]:
    """Returns the shards of every dataset, for each worker."""
    parts = {
        name: dataset.streaming_split(workers, equal=True) for name, dataset in datasets.items()
    }
    return [{name: split[worker] for name, split in parts.items()} for worker in range(workers)]


class _RayJob:
    """The actors of one call of ``run``."""

    def __init__(
        self, ray: ModuleType, placement: RayPlacement, counts: TaskCounts, max_worker_restarts: int
    ) -> None:
        self._ray = ray
        self._placement = placement
        self._counts = counts
        self._max_worker_restarts = max_worker_restarts
        self._secret = new_secret()

    def run(
        self, call: bytes, environment: dict[str, str], shards: list[dict[str, Any]]
    ) -> list[Any]:
        actor = self._ray.remote(TaskActor)
        jobs = list(self._counts.jobs())
        restarts = self._max_worker_restarts if self._counts.ps and self._counts.chief else 0
        actors = [
            actor.options(
                **self._placement.actor_options(bundle), max_restarts=restarts * (job == "worker")
            ).remote()
            for bundle, job in enumerate(jobs)
        ]
        try:
            plan = self._plan(self._get([actor.address.remote() for actor in actors]))

            def begin(task: Task) -> Any:
                number = plan.all_tasks.index(task)
                mine = shards[task.task_id] if task.task_type == "worker" else {}
                arguments = (plan.tf_config(task), self._secret, environment, mine)
                return actors[number].call.remote(call, sys.path, *arguments)

            return self._wait(plan, begin)
        finally:
            for some in actors:
                self._ray.kill(some)

    def _plan(self, places: list[tuple[str, int]]) -> ClusterPlan:
        return plan_cluster(
            NodeOffer(node, host, TaskCounts.of_one(job), (port,))
            for node, (job, (host, port)) in enumerate(
                zip(self._counts.jobs(), places, strict=True)
            )
        )

    def _get(self, references: list[Any]) -> list[Any]:
        try:
            return list(self._ray.get(references))
        except self._ray.exceptions.RayActorError as error:
            raise UnavailableError(f"A task of the Ray job could not start: {error}") from None

    def _wait(self, plan: ClusterPlan, begin: Callable[[Task], Any]) -> list[Any]:
        tasks = plan.all_tasks
        running = {begin(task): task for task in tasks}
        results: dict[Task, Any] = {}
        while not job_is_done(tasks, results):
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=_POLL_INTERVAL)
            for reference in done:
                task = running.pop(reference)
                try:
                    results[task] = self._ray.get(reference)
                except self._ray.exceptions.RayActorError as error:
                    if not can_be_replaced(task, tasks) or not self._max_worker_restarts:
                        raise UnavailableError(f"{task} of the Ray job is gone: {error}") from None
                    time.sleep(_POLL_INTERVAL)
                    running[begin(task)] = task
                except self._ray.exceptions.RayTaskError as error:
                    raise error.as_instanceof_cause() from None
        return [results.get(task) for task in tasks]
