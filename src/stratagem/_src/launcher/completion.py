"""Which tasks a job waits for, and which it can do without for a while."""

from __future__ import annotations

from collections.abc import Collection

from stratagem._src.cluster.leadership import Task

__all__ = ["can_be_replaced", "job_is_done", "tasks_waited_for"]


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


def _serving_jobs(tasks: Collection[Task]) -> set[str]:
    jobs = {task.task_type for task in tasks}
    if "ps" not in jobs or len(jobs) == 1:
        return set()
    return {"ps", "worker"} if "chief" in jobs else {"ps"}
