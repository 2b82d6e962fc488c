"""``SlurmClusterResolver``: tasks started by Slurm's ``srun``."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import SlurmAllocationError
from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.resolvers.slurm_step import SlurmStep, read_num_gpus

__all__ = ["SlurmClusterResolver"]


class SlurmClusterResolver(ClusterResolver):
    """A resolver that reads Slurm's variables; those of the step take precedence over those of the job.

    Jobs get ranks in alphabetical order, so a ``chief`` comes before the workers. Tasks on one node
    listen on consecutive ports.

    >>> import os
    >>> from unittest import mock
    >>> from stratagem.distribute.cluster_resolver import SlurmClusterResolver
    >>> variables = dict(
    ...     SLURM_PROCID="2",
    ...     SLURM_STEP_NUM_TASKS="3",
    ...     SLURM_STEP_NODELIST="n[08-09]",
    ...     SLURM_STEP_TASKS_PER_NODE="2,1",
    ... )
    >>> with mock.patch.dict(os.environ, variables):
    ...     resolver = SlurmClusterResolver({"chief": 1, "worker": 2})
    ...     resolver.cluster_spec().as_dict(), resolver.get_task_info()
    ({'chief': ['n08:8888'], 'worker': ['n08:8889', 'n09:8888']}, ('worker', 1))

    Differs from tf.distribute: the environment is never modified; ``local_device_ids`` has the GPUs that
    TensorFlow writes to ``CUDA_VISIBLE_DEVICES``. Nodes are numbered in Slurm's order, not sorted by
    name, and nodes without a GPU work.

    Args:
        jobs: The number of tasks of each job; by default all are workers.
        port_base: The port of the first task on each node.
        gpus_per_node: The number of GPUs on each node; by default Slurm's number for this node.
        gpus_per_task: The number of GPUs for each task; by default an even share.
        tasks_per_node: The number of tasks on each node, or a mapping from each host to it, in the
            order of their ranks; by default Slurm's.
        auto_set_gpu: Whether ``local_device_ids`` divides the node's GPUs between its tasks.
        rpc_layer: The protocol prefix of addresses.

    Raises:
        EnvironmentVariableError: If a needed variable is missing or malformed, on access.
        SlurmAllocationError: If the tasks of ``jobs`` or the GPUs do not fit the allocation, on access.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        self._jobs = None if jobs is None else dict(sorted(jobs.items()))
        self._port_base = port_base
        self._gpus_per_node = gpus_per_node
        self._gpus_per_task = gpus_per_task
        self._tasks_per_node = tasks_per_node
        self._auto_set_gpu = auto_set_gpu
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster from Slurm's variables."""
        step = self._step()
        addresses = [str(Address(host, self._port_base + local)) for host, local in step.tasks]
        cluster: dict[str, list[str]] = {}
        for task, address in zip(self._task_of_rank(step), addresses, strict=True):
            cluster.setdefault(task.task_type, []).append(address)
        return ClusterSpec(cluster)

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Returns the task type and task id of this process."""
        return self.task_type, self.task_id

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """The GPUs of the node that this task should use; ``None`` to use all visible ones.

        If Slurm has already restricted the visible GPUs to the task's share, the task uses all of them.
        """
        step = self._step()
        per_task = self._count_gpus_per_task(step)
        _, visible = read_num_gpus()
        if not self._auto_set_gpu or visible == per_task or not self._count_gpus_on_node():
            return None
        _, local = step.tasks[step.read_rank()]
        return tuple(range(local * per_task, (local + 1) * per_task))

    def _find_task_type(self) -> str:
        return self._own_task().task_type

    def _find_task_id(self) -> int:
        return self._own_task().task_id

    def _count_accelerators(self) -> dict[str, int]:
        per_task = self._count_gpus_per_task(self._step())
        return {"GPU": per_task} if per_task else {}

    def _step(self) -> SlurmStep:
        return SlurmStep.read(self._tasks_per_node)

    def _own_task(self) -> Task:
        step = self._step()
        return self._task_of_rank(step)[step.read_rank()]

    def _task_of_rank(self, step: SlurmStep) -> list[Task]:
        sizes = self._jobs
        if sizes is None:
            step.check_num_tasks()
            sizes = {"worker": len(step.tasks)}
        if sum(sizes.values()) != len(step.tasks):
            raise SlurmAllocationError(
                f"jobs must have as many tasks as Slurm's nodes, got {sum(sizes.values())} in "
                f"{sizes} and {len(step.tasks)} on the nodes. Change jobs or srun --ntasks."
            )
        return [Task(job, index) for job, size in sizes.items() for index in range(size)]

    def _count_gpus_on_node(self) -> int:
        return read_num_gpus()[0] if self._gpus_per_node is None else self._gpus_per_node

    def _count_gpus_per_task(self, step: SlurmStep) -> int:
        on_node = self._count_gpus_on_node()
        if self._gpus_per_task is None:
            return on_node // max(1, step.max_tasks_per_node)
        wanted = self._gpus_per_task * step.max_tasks_per_node
        if wanted > on_node:
            raise SlurmAllocationError(
                f"The tasks of a node must not need more GPUs than it has, got "
                f"{step.max_tasks_per_node} tasks with {self._gpus_per_task} each and {on_node} "
                "GPUs. Lower gpus_per_task or the tasks per node."
            )
        return self._gpus_per_task
