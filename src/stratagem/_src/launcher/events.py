"""The reports that nodes send to a job, and the orders that the job sends to nodes."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.cluster_plan import ClusterPlan, NodeOffer
from stratagem._src.launcher.task_exit import TaskExit

__all__ = [
    "DeadlinePassed",
    "Finish",
    "ForwardSignal",
    "Interrupted",
    "NodeJoined",
    "NodeLost",
    "NodeStopped",
    "Order",
    "Rejoin",
    "Report",
    "RestartNode",
    "RestartTask",
    "ShutdownNotice",
    "Start",
    "Stop",
    "TaskEnded",
]


@dataclass(frozen=True)
class NodeJoined:
    """A node is ready to run its tasks."""

    offer: NodeOffer


@dataclass(frozen=True)
class TaskEnded:
    """The process of a task has exited."""

    ending: TaskExit


@dataclass(frozen=True)
class NodeStopped:
    """A node was ordered to stop, and all of its processes have exited."""

    node: int


@dataclass(frozen=True)
class NodeLost:
    """The connection to a node is lost; for good if the node has not reconnected in time."""

    node: int
    for_good: bool = False


@dataclass(frozen=True)
class Interrupted:
    """A signal asks the launcher to end the job."""

    signal: int


@dataclass(frozen=True)
class ShutdownNotice:
    """A signal announces to the tasks that the job will be ended soon."""

    signal: int


@dataclass(frozen=True)
class DeadlinePassed:
    """The time for nodes to join this attempt is over."""

    attempt: int


Report = (
    NodeJoined | TaskEnded | NodeStopped | NodeLost | ShutdownNotice | Interrupted | DeadlinePassed
)


@dataclass(frozen=True)
class Start:
    """Start your tasks; they send samples to ``collector`` if there is one."""

    attempt: int
    job_id: str
    plan: ClusterPlan
    collector: str = ""


@dataclass(frozen=True)
class RestartTask:
    """Restart this task, if it is yours, at the same address."""

    task: Task
    reason: str


@dataclass(frozen=True)
class ForwardSignal:
    """Send a signal to your tasks among these, and let them continue."""

    signal: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class RestartNode:
    """Start your tasks of the running attempt, if you are this node; otherwise update its addresses."""

    node: int
    start: Start
    reason: str


@dataclass(frozen=True)
class Stop:
    """Stop your tasks with a signal, and kill those that still run ``seconds`` later."""

    signal: int
    seconds: float


@dataclass(frozen=True)
class Rejoin:
    """Join the next attempt, with new ports."""

    attempt: int
    reason: str


@dataclass(frozen=True)
class Finish:
    """The job has ended: show the message, if any, and exit with this code."""

    exit_code: int
    message: str = ""


Order = Start | RestartTask | RestartNode | ForwardSignal | Stop | Rejoin | Finish
