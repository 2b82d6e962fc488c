"""``LocalBackend``: runs every task on this machine."""

from __future__ import annotations

from stratagem._src.launcher.backends.backend import (
    description_text,
    refuse_resources,
    task_program,
)
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.local_job import run_local_job
from stratagem._src.launcher.signal_pipe import SignalPipe

__all__ = ["LocalBackend"]


class LocalBackend:
    """Runs every task on this machine, with a new secret for each job."""

    def preview(self, job: JobDescription) -> str:
        """Returns the job description: a local job needs nothing else."""
        refuse_resources(job, "local")
        return description_text(job)

    def run(self, job: JobDescription, console: Console) -> int:
        """Runs the job and returns its exit code."""
        refuse_resources(job, "local")
        result = run_local_job(
            job.tasks,
            task_program(job),
            console,
            rules=job.rules,
            signals=SignalPipe(),
            monitoring=job.monitoring,
        )
        return result.exit_code
