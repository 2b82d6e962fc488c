"""``JobDescription``: one job as plain data, independent of the back end."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.monitoring_options import MonitoringOptions
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_program import check_num_devices
from stratagem._src.launcher.task_resources import TaskResources
from stratagem._src.telemetry.monitoring.collector_address import collector_variables
from stratagem._src.telemetry.monitoring.dashboard.page_certificate import PageCertificate

__all__ = ["JobDescription"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the launcher sets for every task.
_OURS = (
    "TF_CONFIG",
    "STRATAGEM_CLUSTER_SECRET",
    "STRATAGEM_CLUSTER_SECRET_FILE",
    *collector_variables("", "", ""),
)


@dataclass(frozen=True)
class JobDescription:
    """One job: its program, its tasks, their resources, and the rules for failures.

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
        tasks: The number of tasks of each kind.
        name: The name of the job in a scheduler; by default that of the program.
        devices_per_worker: The number of virtual CPU devices of each task; ``None`` leaves it to JAX.
        environment: Variables that every task gets in addition to those of its launcher.
        resources: The resources that each task requests from a scheduler.
        rules: What happens when a task fails.
        quiet: Whether only the leader's output is shown.
        log_dir: The directory for log files with every task's output, if any.
        events: The file for the job's events, if any.
        dashboard: The address of the dashboard as ``host:port``, with port 0 for any free port, if any.
        opentelemetry: Whether to export the tasks' measurements as OpenTelemetry metrics.
        dashboard_certfile: The file with the dashboard's certificate; ``None`` for plain HTTP.
        dashboard_keyfile: The file with its key; ``None`` if that is in the same file.

    Raises:
        LaunchError: If a value is invalid, or values contradict each other.
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
    dashboard_certfile: str | None = None
    dashboard_keyfile: str | None = None

    def __post_init__(self) -> None:
        self.tasks.check_not_empty()
        self._check_certificate()
        check_num_devices(self.devices_per_worker)
        for name in self.environment:
            if not _VARIABLE.fullmatch(name) or name in _OURS:
                raise LaunchError(
                    "--env must be NAME=VALUE, with a variable that the launcher does not set "
                    f"itself, got {name!r}. Use another name."
                )
        if self.rules.min_workers is not None:
            self._check_elastic(self.rules.min_workers)
        if not self.name:
            object.__setattr__(self, "name", _as_name(self.program.short_name))
        elif _as_name(self.name) != self.name:
            raise LaunchError(
                "--name must be at most 40 lower-case letters, digits and hyphens, starting with "
                f"a letter, got {self.name!r}. Use {_as_name(self.name)!r}."
            )

    def _check_certificate(self) -> None:
        if self.dashboard_keyfile is not None and self.dashboard_certfile is None:
            raise LaunchError(
                "--dashboard-keyfile needs the certificate of that key, got none. Add "
                "--dashboard-certfile FILE."
            )
        if self.dashboard_certfile is not None and self.dashboard is None:
            raise LaunchError(
                "--dashboard-certfile is for a dashboard, but there is none. Add --dashboard or "
                "--dashboard-address."
            )

    def _check_elastic(self, min_workers: int) -> None:
        if self.tasks.ps:
            raise LaunchError(
                "A job with parameter servers must have a fixed number of workers, got a range and "
                f"--ps {self.tasks.ps}. Use --max-worker-restarts to restart its workers."
            )
        if min_workers < 1:
            raise LaunchError(
                f"The minimum number of workers must be at least 1, got {min_workers}."
            )

    @property
    def monitoring(self) -> MonitoringOptions:
        """How the launcher that leads the job monitors it."""
        certificate = (
            None
            if self.dashboard_certfile is None
            else PageCertificate(self.dashboard_certfile, self.dashboard_keyfile)
        )
        return MonitoringOptions(
            self.name, self.events, self.dashboard, self.opentelemetry, certificate
        )

    def all_tasks(self) -> Iterator[Task]:
        """Yields every task in rank order: chief, workers, parameter servers, evaluator."""
        numbers: dict[str, int] = {}
        for job in self.tasks.jobs():
            yield Task(job, numbers.setdefault(job, 0))
            numbers[job] += 1

    def gpus_of(self, task_type: str) -> int | None:
        """Returns the number of GPUs of a task of this kind."""
        serves = task_type == "ps" or (task_type == "chief" and self.tasks.ps > 0)
        return None if serves else self.resources.gpus

    def to_json(self) -> dict[str, Any]:
        """Returns the description as a JSON-serializable dictionary."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> JobDescription:
        """Returns the description from the dictionary of ``to_json``."""
        program = fields["program"] | {"arguments": tuple(fields["program"]["arguments"])}
        parts = {
            "program": PythonProgram(**program),
            "tasks": TaskCounts(**fields["tasks"]),
            "resources": TaskResources(**fields["resources"]),
            "rules": JobRules(**fields["rules"]),
        }
        return cls(**(fields | parts))


def _as_name(text: str) -> str:
    """Returns a name that is valid in Slurm, Kubernetes and Ray."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".strip("-")[:40].strip("-")
