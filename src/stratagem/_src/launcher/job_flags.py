"""Converts a job description back to flags of ``stratagem run``, for processes that run parts of it."""

from __future__ import annotations

import dataclasses

from stratagem._src.launcher.job_description import JobDescription

__all__ = ["job_flags"]


def job_flags(job: JobDescription) -> list[str]:
    """Returns the command-line arguments of ``stratagem run`` that describe a job.

    >>> from stratagem._src.launcher.job_description import JobDescription
    >>> from stratagem._src.launcher.job_flags import job_flags
    >>> from stratagem._src.launcher.python_program import PythonProgram
    >>> job_flags(JobDescription(PythonProgram("train.py", ("--lr", "0.1"))))
    ['--name=train', '--workers=1', 'train.py', '--lr', '0.1']
    """
    flags = [f"--name={job.name}", f"--workers={job.tasks.workers}"]
    flags += [f"--ps={job.tasks.ps}"] * bool(job.tasks.ps)
    flags += ["--chief"] * job.tasks.chief + ["--evaluator"] * job.tasks.evaluator
    if job.devices_per_worker is not None:
        flags.append(f"--devices-per-worker={job.devices_per_worker}")
    flags += [f"--env={name}={value}" for name, value in job.environment.items()]
    flags += _resource_flags(job)
    for field in dataclasses.fields(job.rules):
        number = getattr(job.rules, field.name)
        if number != field.default:
            flags.append(f"--{field.name.replace('_', '-')}={number}")
    flags += ["--quiet"] * job.quiet
    if job.log_dir is not None:
        flags.append(f"--log-dir={job.log_dir}")
    if job.events is not None:
        flags.append(f"--events={job.events}")
    if job.dashboard is not None:
        flags.append(f"--dashboard-address={job.dashboard}")
    if job.dashboard_certfile is not None:
        flags.append(f"--dashboard-certfile={job.dashboard_certfile}")
    if job.dashboard_keyfile is not None:
        flags.append(f"--dashboard-keyfile={job.dashboard_keyfile}")
    flags += ["--opentelemetry"] * job.opentelemetry
    flags += ["-m"] * job.program.is_module
    return [*flags, job.program.name, *job.program.arguments]


def _resource_flags(job: JobDescription) -> list[str]:
    resources = job.resources
    flags = [] if resources.cpus is None else [f"--cpus={resources.cpus}"]
    if resources.memory_bytes is not None:
        flags.append(f"--memory={-(-resources.memory_bytes // 2**10)}K")
    return flags if resources.gpus is None else [*flags, f"--gpus={resources.gpus}"]
