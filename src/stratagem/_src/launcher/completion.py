"""Decides when a job is complete, and which tasks can be restarted while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from stratagem._src.cluster.elastic_environment import RESTART_EXIT_CODE
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.task_exit import TaskExit

__all__ = [
    "awaited_tasks",
    "can_be_replaced",
    "elastic_job_is_done",
    "is_loss",
    "job_is_done",
    "trains",
    "workers_succeeded",
]


def job_is_done(tasks: Collection[Task], succeeded: Collection[Task]) -> bool:
    """Returns whether a job is complete, so that tasks that still run can be stopped.

    Parameter servers run until they are stopped. In a job with parameter servers and a chief, the workers
    serve the chief as well, so the job is done when the chief is. Otherwise every task has to finish.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import job_is_done
    >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0)]
    >>> job_is_done(tasks, [Task("chief", 0)])
    True
    """
    return all(task in succeeded for task in awaited_tasks(tasks))


def awaited_tasks(tasks: Collection[Task]) -> list[Task]:
    """Returns the tasks that determine when a job is done; the others only serve them.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import awaited_tasks
    >>> awaited_tasks([Task("chief", 0), Task("worker", 0), Task("ps", 0)])
    [Task(task_type='chief', task_id=0)]
    """
    serving = _serving_jobs(tasks)
    return [task for task in tasks if task.task_type not in serving]


def can_be_replaced(task: Task, tasks: Collection[Task]) -> bool:
    """Returns whether a job can continue when a task dies and is restarted.

    The chief can send a restarted worker everything that the worker held. It can restore the variables of a
    restarted parameter server from a checkpoint, if the program does so; otherwise the chief fails. A
    restarted chief finds workers and servers as they are.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import can_be_replaced
    >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0), Task("evaluator", 0)]
    >>> [can_be_replaced(task, tasks) for task in tasks]
    [True, True, True, False]
    """
    serving = _serving_jobs(tasks)
    return "worker" in serving and task.task_type in {*serving, "chief"}


def trains(task: Task) -> bool:
    """Returns whether a task is one of the synchronous workers of an elastic job."""
    return task.task_type in ("chief", "worker")


def is_loss(task_exit: TaskExit) -> bool:
    """Returns whether a worker of an elastic job was lost, rather than failed in its own program.

    A lost worker was ended by a signal, or requests a restart with its exit code.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import is_loss
    >>> from stratagem._src.launcher.task_exit import TaskExit
    >>> [is_loss(TaskExit(Task("worker", 0), code)) for code in (-9, 75, 1)]
    [True, True, False]
    """
    return trains(task_exit.task) and (
        task_exit.returncode < 0 or task_exit.returncode == RESTART_EXIT_CODE
    )


def workers_succeeded(exits: Iterable[TaskExit]) -> bool:
    """Returns whether a worker has succeeded, which means that the training is complete."""
    return any(found.returncode == 0 and trains(found.task) for found in exits)


def elastic_job_is_done(
    tasks: Collection[Task],
    exits: Mapping[Task, TaskExit],
    restarted: Collection[Task],
) -> bool:
    """Returns whether an elastic job is complete.

    Its workers finish together. A restarted worker may have come too late to join, so the job does not
    wait for it.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import elastic_job_is_done
    >>> from stratagem._src.launcher.task_exit import TaskExit
    >>> first, second = Task("worker", 0), Task("worker", 1)
    >>> exits = {first: TaskExit(first, 0)}
    >>> elastic_job_is_done([first, second], exits, []), elastic_job_is_done(
    ...     [first, second], exits, [second])
    (False, True)
    """
    awaited = [task for task in tasks if task not in exits and task not in restarted]
    return workers_succeeded(exits.values()) and not awaited


def _serving_jobs(tasks: Collection[Task]) -> set[str]:
    jobs = {task.task_type for task in tasks}
    if "ps" not in jobs or len(jobs) == 1:
        return set()
    return {"ps", "worker"} if "chief" in jobs else {"ps"}
