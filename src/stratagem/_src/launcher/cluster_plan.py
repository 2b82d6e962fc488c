"""``plan_cluster``: assigns tasks and addresses to the nodes that joined a job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.leadership import Task, worker_tasks
from stratagem._src.launcher.task_counts import TaskCounts

__all__ = ["ClusterPlan", "NodeOffer", "add_node", "plan_cluster"]


@dataclass(frozen=True)
class NodeOffer:
    """What one node offers: its tasks, its host, and a reserved port for each task that listens."""

    node: int
    host: str
    counts: TaskCounts
    ports: tuple[int, ...]


@dataclass(frozen=True)
class ClusterPlan:
    """The addresses of a cluster, and the tasks of each node."""

    cluster: Mapping[str, list[str]]
    tasks: Mapping[int, tuple[Task, ...]]

    def tf_config(self, task: Task) -> str:
        """Returns the value of ``TF_CONFIG`` for a task."""
        me = {"type": task.task_type, "index": task.task_id}
        return json.dumps({"cluster": dict(self.cluster), "task": me})

    @property
    def all_tasks(self) -> list[Task]:
        """Every task, in the order of the nodes."""
        return [task for node in sorted(self.tasks) for task in self.tasks[node]]

    @property
    def shown_when_quiet(self) -> Task:
        """The leader, or the first task if the job has no workers."""
        return next(iter(worker_tasks(ClusterSpec(self.cluster))), self.all_tasks[0])


def plan_cluster(offers: Iterable[NodeOffer]) -> ClusterPlan:
    """Numbers the tasks of all nodes, in the order of the nodes.

    >>> from stratagem._src.launcher.task_counts import TaskCounts
    >>> from stratagem._src.launcher.cluster_plan import NodeOffer, plan_cluster
    >>> plan = plan_cluster([
    ...     NodeOffer(1, "b", TaskCounts(workers=1), (7001,)),
    ...     NodeOffer(0, "a", TaskCounts(workers=1, chief=True), (7001, 7002)),
    ... ])
    >>> plan.cluster
    {'chief': ['a:7001'], 'worker': ['a:7002', 'b:7001']}
    >>> [str(task) for task in plan.tasks[1]]
    ['worker 1']

    Raises:
        LaunchError: If the nodes together have more than one chief or evaluator.
    """
    ordered = sorted(offers, key=lambda offer: offer.node)
    for job in ("chief", "evaluator"):
        nodes = [offer.node for offer in ordered if getattr(offer.counts, job)]
        if len(nodes) > 1:
            raise LaunchError(
                f"A cluster must have at most one {job}, but nodes {nodes} each have one. "
                f"Pass --{job} on one node only."
            )
    cluster: dict[str, list[str]] = {}
    tasks: dict[int, tuple[Task, ...]] = {}
    for offer in ordered:
        ports = iter(offer.ports)
        placed = []
        for job in offer.counts.jobs():
            if job == "evaluator":
                placed.append(Task(job, 0))
                continue
            addresses = cluster.setdefault(job, [])
            placed.append(Task(job, len(addresses)))
            addresses.append(str(Address(offer.host, next(ports))))
        tasks[offer.node] = tuple(placed)
    return ClusterPlan(cluster, tasks)


def add_node(plan: ClusterPlan, offer: NodeOffer) -> ClusterPlan:
    """Returns a plan with the addresses of a node that joined, or rejoined, a running job.

    The node keeps the tasks that it had; additional ones are numbered after all others.

    >>> from stratagem._src.launcher.task_counts import TaskCounts
    >>> from stratagem._src.launcher.cluster_plan import NodeOffer, add_node, plan_cluster
    >>> plan = plan_cluster([NodeOffer(n, "a", TaskCounts(workers=1), (n,)) for n in range(2)])
    >>> add_node(plan, NodeOffer(0, "b", TaskCounts(workers=2), (8, 9))).cluster
    {'worker': ['b:8', 'a:1', 'b:9']}
    """
    cluster = {job: list(addresses) for job, addresses in plan.cluster.items()}
    free = list(plan.tasks.get(offer.node, ()))
    ports, placed = iter(offer.ports), []
    for job in offer.counts.jobs():
        if job == "evaluator":
            placed.append(Task(job, 0))
            continue
        addresses = cluster.setdefault(job, [])
        task = next((task for task in free if task.task_type == job), Task(job, len(addresses)))
        if task in free:
            free.remove(task)
        placed.append(task)
        addresses[task.task_id : task.task_id + 1] = [str(Address(offer.host, next(ports)))]
    return ClusterPlan(cluster, {**plan.tasks, offer.node: tuple(placed)})
