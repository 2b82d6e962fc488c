"""``SlurmStep``: the Slurm step of this process, from Slurm's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.environment_variables import (
    first_set,
    is_set,
    read_integer,
    read_text,
)
from stratagem._src.cluster.errors import (
    ClusterSpecError,
    EnvironmentVariableError,
    SlurmAllocationError,
)
from stratagem._src.cluster.resolvers.slurm_expressions import (
    expand_host_list,
    expand_tasks_per_node,
)

__all__ = ["SlurmStep", "read_num_gpus"]

_FIX = "Start the program with srun."
# The variables of the step come first: those of the job describe the whole allocation, and srun may use
# only a part of it.
_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_NUM_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_MAX_TASKS = 2**20
_TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")


@dataclass(frozen=True)
class SlurmStep:
    """The tasks of a Slurm step: the host and local rank of each, by rank.

    >>> from stratagem._src.cluster.resolvers.slurm_step import SlurmStep
    >>> SlurmStep.lay_out({"a": 2, "b": 1}, cyclic=True).tasks
    (('a', 0), ('b', 0), ('a', 1))
    """

    tasks: tuple[tuple[str, int], ...]
    max_tasks_per_node: int

    @classmethod
    def lay_out(cls, tasks_per_node: Mapping[str, int], *, cyclic: bool = False) -> SlurmStep:
        """Returns the step with nodes filled one after the other, or round-robin if cyclic."""
        tasks = [(host, local) for host, count in tasks_per_node.items() for local in range(count)]
        if cyclic:
            tasks.sort(key=lambda task: task[1])  # stable: hosts keep their order in each round
        return cls(tuple(tasks), max(tasks_per_node.values(), default=0))

    @classmethod
    def read(cls, tasks_per_node: int | Mapping[str, int] | None) -> SlurmStep:
        """Reads the step from the environment; the argument overrides its counts."""
        if isinstance(tasks_per_node, Mapping):
            return cls.lay_out(tasks_per_node, cyclic=_is_cyclic())
        hosts = _read_hosts()
        if tasks_per_node is not None:
            counts = [tasks_per_node] * len(hosts)
        else:
            counts = _read_tasks_per_node(len(hosts))
        return cls.lay_out(dict(zip(hosts, counts, strict=True)), cyclic=_is_cyclic())

    def read_rank(self) -> int:
        """Returns the rank of this process in the step."""
        return read_integer("SLURM_PROCID", "this task's rank", _FIX, below=len(self.tasks))

    def check_num_tasks(self) -> None:
        """Raises if Slurm's number of tasks differs from the number of tasks on its nodes."""
        variable = first_set(*_NUM_TASKS) or _NUM_TASKS[0]
        number = read_integer(variable, "the number of tasks", _FIX, minimum=1)
        if number != len(self.tasks):
            raise EnvironmentVariableError(
                variable, str(number), f"the number of tasks on the nodes, {len(self.tasks)}"
            )


def read_num_gpus() -> tuple[int, int | None]:
    """Returns the number of GPUs of this node, and of those that this process sees, if known."""
    visible = None
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        visible = len([name for name in names if name.strip() not in ("", "-1", "NoDevFiles")])
    if is_set("SLURM_GPUS_ON_NODE"):
        fix = "Leave it to Slurm."
        return read_integer("SLURM_GPUS_ON_NODE", "the number of GPUs of this node", fix), visible
    return visible or 0, visible


def _read_hosts() -> list[str]:
    variable = first_set(*_NODES) or _NODES[0]
    text = read_text(variable, "the list of nodes", _FIX)
    try:
        hosts = [Address(host, 0).host for host in expand_host_list(text)]
    except ClusterSpecError as error:
        raise EnvironmentVariableError(variable, text, f"the list of nodes ({error})") from None
    if len(set(hosts)) != len(hosts):
        raise EnvironmentVariableError(variable, text, "every node once")
    return hosts


def _read_tasks_per_node(num_hosts: int) -> list[int]:
    variable = first_set(*_TASKS_PER_NODE) or _TASKS_PER_NODE[0]
    text = read_text(
        variable, "the number of tasks on each node", f"{_FIX} Or pass tasks_per_node."
    )
    try:
        counts = expand_tasks_per_node(text)
    except ClusterSpecError as error:
        raise EnvironmentVariableError(variable, text, f"counts of tasks ({error})") from None
    if len(counts) != num_hosts:
        raise EnvironmentVariableError(variable, text, f"the tasks of each of {num_hosts} nodes")
    if sum(counts) > _MAX_TASKS:
        raise EnvironmentVariableError(variable, text, f"at most {_MAX_TASKS} tasks in total")
    return counts


def _is_cyclic() -> bool:
    # Examples: block, cyclic:block, block:cyclic,Pack. The part before the colon describes nodes.
    text = os.environ.get("SLURM_DISTRIBUTION", "") or "block"
    over_nodes = text.split(":")[0].split(",")[0].strip().lower()
    if over_nodes not in ("block", "cyclic", "*"):
        raise SlurmAllocationError(
            f"SLURM_DISTRIBUTION must be block or cyclic to determine the host of each rank, "
            f"got {text!r}. Use srun --distribution=block, or describe the cluster in TF_CONFIG."
        )
    return over_nodes == "cyclic"
