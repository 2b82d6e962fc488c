"""Which tasks a job waits for, and which it can do without for a while."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from stratagem._src.cluster.elastic_environment import START_AGAIN
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.task_ending import TaskEnding

__all__ = [
    "can_be_replaced",
    "elastic_job_is_done",
    "is_loss",
    "job_is_done",
    "tasks_waited_for",
    "trains",
    "workers_succeeded",
]


def job_is_done(tasks: Collection[Task], succeeded: Collection[Task]) -> bool:
    """Returns whether a job is complete, so that tasks that still run can be ended.

    Parameter servers serve until they are ended. Where there are some, a chief directs the workers,
    which serve too, so the job is done when the chief is. Otherwise every task has to finish.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import job_is_done
    >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0)]
    >>> job_is_done(tasks, [Task("chief", 0)])
    True
    """
    return all(task in succeeded for task in tasks_waited_for(tasks))


def tasks_waited_for(tasks: Collection[Task]) -> list[Task]:
    """Returns the tasks that decide when a job is done; the others only serve them.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import tasks_waited_for
    >>> tasks_waited_for([Task("chief", 0), Task("worker", 0), Task("ps", 0)])
    [Task(task_type='chief', task_id=0)]
    """
    serving = _serving_jobs(tasks)
    return [task for task in tasks if task.task_type not in serving]


def can_be_replaced(task: Task, tasks: Collection[Task]) -> bool:
    """Returns whether a job can go on when a task dies, if it is started again.

    Workers that a chief directs hold nothing that the chief cannot give them anew. What parameter servers
    held it can restore from a checkpoint, if the program says so; if not, it fails. A chief that is started
    again finds workers and servers as they are.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import can_be_replaced
    >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0), Task("evaluator", 0)]
    >>> [can_be_replaced(task, tasks) for task in tasks]
    [True, True, True, False]
    """
    serving = _serving_jobs(tasks)
    return "worker" in serving and task.task_type in {*serving, "chief"}


def trains(task: Task) -> bool:
    """Returns whether a task is one of the workers in step of an elastic job."""
    return task.task_type in ("chief", "worker")


def is_loss(ending: TaskEnding) -> bool:
    """Returns whether a worker of an elastic job was lost, and did not fail by its own program.

    It was ended by a signal, or says itself that it should be started again.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import is_loss
    >>> from stratagem._src.launcher.task_ending import TaskEnding
    >>> [is_loss(TaskEnding(Task("worker", 0), code)) for code in (-9, 75, 1)]
    [True, True, False]
    """
    return trains(ending.task) and (ending.returncode < 0 or ending.returncode == START_AGAIN)


def workers_succeeded(endings: Iterable[TaskEnding]) -> bool:
    """Returns whether a worker has come to its end, so that the training is over."""
    return any(ending.returncode == 0 and trains(ending.task) for ending in endings)


def elastic_job_is_done(
    tasks: Collection[Task],
    endings: Mapping[Task, TaskEnding],
    started_again: Collection[Task],
) -> bool:
    """Returns whether an elastic job is complete.

    Its workers end together. One that was started again may have come too late to be let in, and is not
    waited for.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import elastic_job_is_done
    >>> from stratagem._src.launcher.task_ending import TaskEnding
    >>> first, second = Task("worker", 0), Task("worker", 1)
    >>> endings = {first: TaskEnding(first, 0)}
    >>> elastic_job_is_done([first, second], endings, []), elastic_job_is_done(
    ...     [first, second], endings, [second])
    (False, True)
    """
    awaited = [task for task in tasks if task not in endings and task not in started_again]
    return workers_succeeded(endings.values()) and not awaited


def _serving_jobs(tasks: Collection[Task]) -> set[str]:
    jobs = {task.task_type for task in tasks}
    if "ps" not in jobs or len(jobs) == 1:
        return set()
    return {"ps", "worker"} if "chief" in jobs else {"ps"}
