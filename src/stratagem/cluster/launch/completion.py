"""``job_is_done``: which tasks a job waits for."""

from __future__ import annotations

from collections.abc import Collection

from stratagem.cluster.leadership import Task

__all__ = ["job_is_done"]


def job_is_done(tasks: Collection[Task], succeeded: Collection[Task]) -> bool:
    """Returns whether a job is complete, so that tasks that still run can be ended.

    Parameter servers serve until they are ended. Where there are some, a chief directs the workers,
    which serve too, so the job is done when the chief is. Otherwise every task has to finish.

    >>> from stratagem.cluster import Task
    >>> from stratagem.cluster.launch.completion import job_is_done
    >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0)]
    >>> job_is_done(tasks, [Task("chief", 0)])
    True
    """
    jobs = {task.task_type for task in tasks}
    serving = set()
    if "ps" in jobs and len(jobs) > 1:
        serving.add("ps")
        if "chief" in jobs:
            serving.add("worker")
    return all(task in succeeded for task in tasks if task.task_type not in serving)
