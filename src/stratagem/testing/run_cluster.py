"""``run_cluster``: a function in the real processes of a cluster."""

from __future__ import annotations

import io
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

from stratagem.cluster.launch.console import Console
from stratagem.cluster.launch.failure_report import failure_excerpt
from stratagem.cluster.launch.local_job import Deadline, run_local_job
from stratagem.cluster.launch.program import Program
from stratagem.cluster.launch.task_counts import TaskCounts
from stratagem.cluster.launch.task_ending import TaskEnding
from stratagem.testing import task_process
from stratagem.testing.errors import ClusterTestError, TaskFailure

__all__ = ["run_cluster"]

# Short, because JAX takes no notice of SIGTERM in a cluster, and a test has nothing to save.
_GRACE_SECONDS = 0.5
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
    """Calls a function in every process of a new cluster and returns what each returned.

    The processes are real, started as ``stratagem run`` starts them: each has ``TF_CONFIG``, a
    cluster secret, and its own virtual CPU devices. When one fails, the others are ended. None of
    them, nor anything that they started, is left when this returns or raises.

    The function, its arguments and its result travel by ``cloudpickle``: lambdas, closures and
    functions of the main program are fine; functions of a module are imported there again.

    >>> import json, os
    >>> from stratagem.testing import run_cluster
    >>> run_cluster(lambda x: x * json.loads(os.environ["TF_CONFIG"])["task"]["index"], 2, (10,))
    [0, 10]

    Args:
        fn: What every task calls.
        workers: How many workers there are.
        args: Arguments of ``fn``.
        kwargs: Keyword arguments of ``fn``.
        devices_per_worker: How many virtual CPU devices each process has.
        timeout: Seconds until every task must be done.
        chief: Whether there is a chief beside the workers.
        ps: How many parameter servers there are. They are ended when the others are done.
        evaluator: Whether there is an evaluator.
        env: Variables that the processes have in addition to those of this one.

    Returns:
        The results: the chief's, the workers', the parameter servers', the evaluator's. ``None`` for
        a task that was ended because the job was done.

    Raises:
        ClusterTestError: If a task raised, died, or was not done in time.
    """
    counts = TaskCounts(workers, ps, chief, evaluator)
    with tempfile.TemporaryDirectory(prefix="stratagem-") as name:
        folder = Path(name)
        call = cloudpickle.dumps((fn, args, dict(kwargs or {})))
        (folder / "call.pickle").write_bytes(call)
        (folder / "sys_path.json").write_text(json.dumps(sys.path))
        # They are remembered anyway, and shown only if the job fails.
        unseen = io.StringIO()
        result = run_local_job(
            counts,
            Program(
                (sys.executable, _TASK_PROCESS, name),
                {**os.environ, **(env or {})},
                devices_per_worker,
            ),
            Console(unseen, unseen),
            grace_seconds=_GRACE_SECONDS,
            deadline=Deadline(timeout, signal.SIGABRT),
        )
        outcomes = {ending.task: _outcome(folder, ending) for ending in result.endings}
    if result.exit_code != 0:
        failures = [
            _failure(ending, outcomes[ending.task], timeout)
            for ending in result.endings
            if ending.failed or ending.returncode == -signal.SIGABRT
        ]
        raise ClusterTestError(failures)
    order = [*counts.jobs()]
    tasks = sorted(outcomes, key=lambda task: (order.index(task.task_type), task.task_id))
    return [outcomes[task].get("result") for task in tasks]


def _outcome(folder: Path, ending: TaskEnding) -> dict[str, Any]:
    path = task_process.outcome_file(folder, *ending.task)
    if not path.exists():
        return {}
    outcome: dict[str, Any] = pickle.loads(path.read_bytes())
    return outcome


def _failure(ending: TaskEnding, outcome: dict[str, Any], timeout: float) -> TaskFailure:
    if "raised" in outcome:
        summary = f"raised {outcome['raised']}"
        exception = outcome.get("exception")
        return TaskFailure(ending.task, summary, ending.exit_code, exception, outcome["traceback"])
    if ending.by_launcher:
        summary = f"was not done after {timeout:g} s"
    else:
        summary = ending.describe().removeprefix(f"{ending.task} ")
    return TaskFailure(
        ending.task, summary, ending.exit_code, traceback=failure_excerpt(ending.output)
    )
