"""``run_cluster``: calls a function in the real processes of a cluster."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from stratagem._src.launcher.console import Console
from stratagem._src.launcher.failure_report import failure_excerpt
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.local_job import Deadline, run_local_job
from stratagem._src.launcher.task_counts import JOBS, TaskCounts
from stratagem._src.launcher.task_exit import TaskExit
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.testing import task_process
from stratagem._src.testing.errors import ClusterTestError, TaskFailure

__all__ = ["run_cluster"]

# Short, because JAX ignores SIGTERM in a cluster, and a test has nothing to save.
_RULES = JobRules(max_worker_restarts=0, grace_seconds=0.5)
_TASK_PROCESS = os.path.abspath(task_process.__file__)


def run_cluster(
    fn: Callable[..., Any],
    workers: int = 3,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices_per_worker: int = 1,
    timeout: float = 60.0,
    chief: bool = False,
    ps: int = 0,
    evaluator: bool = False,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Calls a function in every process of a new cluster and returns the results.

    The processes are real, started as ``stratagem run`` starts them: each has ``TF_CONFIG``, a
    cluster secret, and its own virtual CPU devices. When one fails, the others are stopped. All
    processes and their descendants have exited when this returns or raises.

    The function, its arguments and its result are serialized with ``cloudpickle``: lambdas, closures and
    functions of the main program work; functions of a module are imported again in each process.

    >>> import json, os
    >>> from stratagem.testing import run_cluster
    >>> run_cluster(lambda x: x * json.loads(os.environ["TF_CONFIG"])["task"]["index"], 2, (10,))
    [0, 10]

    Args:
        fn: The function that every task calls.
        workers: The number of workers.
        args: Arguments of ``fn``.
        kwargs: Keyword arguments of ``fn``.
        devices_per_worker: The number of virtual CPU devices of each process.
        timeout: Seconds until every task must be done.
        chief: Whether to add a chief to the workers.
        ps: The number of parameter servers. They are stopped when the other tasks are done.
        evaluator: Whether to add an evaluator.
        env: Environment variables of the processes, in addition to those of this process.

    Returns:
        The results: the chief's, the workers', the parameter servers', the evaluator's. ``None`` for
        a task that was stopped because the job was done.

    Raises:
        ClusterTestError: If a task raised, died, or was not done in time.
    """
    counts = TaskCounts(workers, ps, chief, evaluator)
    counts.check_not_empty()
    with tempfile.TemporaryDirectory(prefix="stratagem-") as name:
        folder = Path(name)
        call = cloudpickle.dumps((fn, args, dict(kwargs or {})))
        (folder / "call.pickle").write_bytes(call)
        (folder / "sys_path.json").write_text(json.dumps(sys.path))
        command = (sys.executable, _TASK_PROCESS, name)
        result = run_local_job(
            counts,
            TaskProgram(command, {**os.environ, **(env or {})}, devices_per_worker),
            Console(sys.stdout, sys.stderr),
            rules=_RULES,
            deadline=Deadline(timeout, signal.SIGABRT),
        )
        late = timeout if result.timed_out else None
        outcomes = {found.task: _outcome(folder, found, late) for found in result.exits}
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, TaskFailure)]
    if failures:
        raise ClusterTestError(failures)
    tasks = sorted(outcomes, key=lambda task: (JOBS.index(task.task_type), task.task_id))
    return [outcomes[task] for task in tasks]


def _outcome(folder: Path, ended: TaskExit, late: float | None) -> Any:
    """Returns the result of a task, or its failure."""
    path = task_process.outcome_file(folder, *ended.task)
    outcome = pickle.loads(path.read_bytes()) if path.exists() else {}
    if "result" in outcome and ended.returncode == 0:
        try:
            return pickle.loads(outcome["result"])
        except Exception as error:
            summary = f"returned a value that cannot be unpickled: {error!r}"
            return TaskFailure(ended.task, summary, ended.exit_code)
    if "raised" in outcome:
        summary, exception = f"raised {outcome['raised']}", _exception(outcome["exception"])
        return TaskFailure(ended.task, summary, ended.exit_code, exception, outcome["traceback"])
    if ended.by_launcher and late is None:
        return None
    if ended.by_launcher:
        summary = f"was not done after {late:g} s"
    elif ended.returncode == 0:
        summary = "exited before the function returned"
    else:
        summary = ended.describe().removeprefix(f"{ended.task} ")
    excerpt = failure_excerpt(ended.output)
    return TaskFailure(ended.task, summary, ended.exit_code, traceback=excerpt)


def _exception(pickled: bytes) -> BaseException | None:
    try:
        exception = pickle.loads(pickled)
    except Exception:  # many exceptions can be pickled, but not unpickled
        return None
    return exception if isinstance(exception, BaseException) else None
