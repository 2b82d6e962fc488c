"""Which tasks a job waits for, and which it can do without for a while."""

from __future__ import annotations

from collections.abc import Collection

from stratagem._src.cluster.leadership import Task

__all__ = ["can_be_replaced", "job_is_done"]


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
    serving = _serving_jobs(tasks)
    return all(task in succeeded for task in tasks if task.task_type not in serving)


def can_be_replaced(task: Task, tasks: Collection[Task]) -> bool:
    """Returns whether a job can go on when a task dies, if it is started again.

    Workers that a chief directs hold nothing that the chief cannot give them anew.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.completion import can_be_replaced
    >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0)]
    >>> [can_be_replaced(task, tasks) for task in tasks]
    [False, True, False]
    """
    return task.task_type == "worker" and "worker" in _serving_jobs(tasks)


def _serving_jobs(tasks: Collection[Task]) -> set[str]:
    jobs = {task.task_type for task in tasks}
    if "ps" not in jobs or len(jobs) == 1:
        return set()
    return {"ps", "worker"} if "chief" in jobs else {"ps"}
