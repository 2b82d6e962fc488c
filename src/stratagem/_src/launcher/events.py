"""What nodes report to a job, and what it orders them to do."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.cluster_plan import ClusterPlan, NodeOffer
from stratagem._src.launcher.task_ending import TaskEnding

__all__ = [
    "Announced",
    "DeadlinePassed",
    "Finish",
    "Interrupted",
    "JoinAgain",
    "NodeJoined",
    "NodeLost",
    "NodeStopped",
    "Order",
    "PassOn",
    "Report",
    "Start",
    "StartAgain",
    "Stop",
    "TakeUpAgain",
    "TaskEnded",
]


@dataclass(frozen=True)
class NodeJoined:
    """A node is ready to run its tasks."""

    offer: NodeOffer


@dataclass(frozen=True)
class TaskEnded:
    """The process of a task has ended."""

    ending: TaskEnding


@dataclass(frozen=True)
class NodeStopped:
    """A node was told to stop, and none of its processes are left."""

    node: int


@dataclass(frozen=True)
class NodeLost:
    """A node cannot be reached any more; for good if it has not come back in time."""

    node: int
    for_good: bool = False


@dataclass(frozen=True)
class Interrupted:
    """Somebody wants the job to end."""

    signal: int


@dataclass(frozen=True)
class Announced:
    """Somebody tells the tasks by a signal that the job will have to end soon."""

    signal: int


@dataclass(frozen=True)
class DeadlinePassed:
    """Nodes had their time to join this attempt."""

    attempt: int


Report = NodeJoined | TaskEnded | NodeStopped | NodeLost | Announced | Interrupted | DeadlinePassed


@dataclass(frozen=True)
class Start:
    """Start your tasks, which tell of themselves at ``collector`` if there is one."""

    attempt: int
    job_id: str
    plan: ClusterPlan
    collector: str = ""


@dataclass(frozen=True)
class StartAgain:
    """Start this task again, if it is yours, at the same address."""

    task: Task
    reason: str


@dataclass(frozen=True)
class PassOn:
    """Send those of these tasks that are yours a signal, and let them go on."""

    signal: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class TakeUpAgain:
    """Start your tasks of the attempt that runs, if you are this node; if not, know its addresses."""

    node: int
    start: Start
    reason: str


@dataclass(frozen=True)
class Stop:
    """End your tasks with a signal, and those that still run some seconds later with SIGKILL."""

    signal: int
    seconds: float


@dataclass(frozen=True)
class JoinAgain:
    """Join the next attempt, with new ports."""

    attempt: int
    reason: str


@dataclass(frozen=True)
class Finish:
    """It is over: leave with this code after saying this, unless it is empty."""

    exit_code: int
    message: str = ""


Order = Start | StartAgain | TakeUpAgain | PassOn | Stop | JoinAgain | Finish
