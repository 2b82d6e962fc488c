"""``JobDescription``: one job as plain data, whoever is to run it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.observation_options import ObservationOptions
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_program import check_num_devices
from stratagem._src.launcher.task_resources import TaskResources
from stratagem._src.telemetry.monitoring.collector_address import collector_variables

__all__ = ["JobDescription"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What the launcher itself tells every task.
_OURS = (
    "TF_CONFIG",
    "STRATAGEM_CLUSTER_SECRET",
    "STRATAGEM_CLUSTER_SECRET_FILE",
    *collector_variables("", "", ""),
)


@dataclass(frozen=True)
class JobDescription:
    """One job: what runs, how many tasks of each kind, with what, and what happens when one fails.

    >>> from stratagem._src.launcher.job_description import JobDescription
    >>> from stratagem._src.launcher.python_program import PythonProgram
    >>> from stratagem._src.launcher.task_counts import TaskCounts
    >>> job = JobDescription(PythonProgram("train.py"), TaskCounts(workers=2, ps=1, chief=True))
    >>> [str(task) for task in job.all_tasks()]
    ['chief 0', 'worker 0', 'worker 1', 'ps 0']
    >>> JobDescription.from_json(job.to_json()) == job
    True

    Attributes:
        program: What every task runs.
        tasks: How many tasks of each kind there are.
        name: What a scheduler calls the job; by default after the program.
        devices_per_worker: Into how many virtual devices each task splits the CPU; ``None`` leaves it
            to JAX.
        environment: Variables that every task gets beside those of its launcher.
        resources: What a scheduler is asked for, for each task.
        rules: What happens when a task fails.
        quiet: Whether only the leader's output is shown.
        log_dir: The folder for files with every task's output, if any.
        events: The file for what happens in the job, if any.
        dashboard: Where a page shows the job, as ``host:port`` with port 0 for any, if anywhere.
        opentelemetry: Whether what tasks measure is exported as metrics of OpenTelemetry.

    Raises:
        LaunchError: If something in it cannot be.
    """

    program: PythonProgram
    tasks: TaskCounts = field(default_factory=TaskCounts)
    name: str = ""
    devices_per_worker: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    resources: TaskResources = field(default_factory=TaskResources)
    rules: JobRules = field(default_factory=JobRules)
    quiet: bool = False
    log_dir: str | None = None
    events: str | None = None
    dashboard: str | None = None
    opentelemetry: bool = False

    def __post_init__(self) -> None:
        self.tasks.check_not_empty()
        check_num_devices(self.devices_per_worker)
        for name in self.environment:
            if not _VARIABLE.fullmatch(name) or name in _OURS:
                raise LaunchError(
                    "--env must be NAME=VALUE, with a variable that the launcher does not set "
                    f"itself, got {name!r}."
                )
        if self.rules.min_workers is not None:
            self._check_elastic(self.rules.min_workers)
        if not self.name:
            object.__setattr__(self, "name", _as_name(self.program.short_name))
        elif _as_name(self.name) != self.name:
            raise LaunchError(
                "--name must be lower-case letters, digits and hyphens, at most 40, beginning with "
                f"a letter, got {self.name!r}. Use {_as_name(self.name)!r}."
            )

    def _check_elastic(self, min_workers: int) -> None:
        if self.tasks.ps:
            raise LaunchError(
                "A job with parameter servers has a fixed number of workers, got a range and "
                f"--ps {self.tasks.ps}. Its workers are started again as it is: --max-worker-restarts."
            )
        if min_workers < 1:
            raise LaunchError(
                f"At least one worker must go on, got a least number of {min_workers}."
            )

    @property
    def observation(self) -> ObservationOptions:
        """How the launcher that leads it observes it."""
        return ObservationOptions(self.name, self.events, self.dashboard, self.opentelemetry)

    def all_tasks(self) -> Iterator[Task]:
        """Yields every task in the order of ranks: chief, workers, parameter servers, evaluator."""
        numbers: dict[str, int] = {}
        for job in self.tasks.jobs():
            yield Task(job, numbers.setdefault(job, 0))
            numbers[job] += 1

    def gpus_of(self, task_type: str) -> int | None:
        """Returns how many GPUs a task of this kind is to have."""
        serves = task_type == "ps" or (task_type == "chief" and self.tasks.ps > 0)
        return None if serves else self.resources.gpus

    def to_json(self) -> dict[str, Any]:
        """Returns the description as JSON can hold it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> JobDescription:
        """Returns the description that ``to_json`` gave."""
        program = said["program"] | {"arguments": tuple(said["program"]["arguments"])}
        parts = {
            "program": PythonProgram(**program),
            "tasks": TaskCounts(**said["tasks"]),
            "resources": TaskResources(**said["resources"]),
            "rules": JobRules(**said["rules"]),
        }
        return cls(**(said | parts))


def _as_name(text: str) -> str:
    """Returns a name that Slurm, Kubernetes and Ray all take."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".strip("-")[:40].strip("-")
