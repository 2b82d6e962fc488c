"""Submitting a job to Slurm, and following it until it is over."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.slurm_options import SlurmOptions
from stratagem._src.launcher.backends.slurm_step import task_options
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.lines import LineSplitter
from stratagem._src.transport.secret import SECRET_VARIABLE

__all__ = ["batch_script", "slurm", "submit_and_follow"]

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_FOR_A_COMMAND = 60.0
_SECONDS_TO_QUEUE_AGAIN = 3.0
_OVER = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"),
    *("DEADLINE", "PREEMPTED", "REVOKED"),
)
_KILLED_FOR_TIME = 124
_WITHOUT_CODE = 1


def batch_script(job: JobDescription, options: SlurmOptions) -> str:
    """Returns the script that is submitted.

    It becomes the same command, which then finds itself in an allocation. Slurm signals it, and so all
    tasks, before the time is over, and some seconds more than they have to end.
    """
    requests = [f"--job-name={job.name}", f"--output={_output_file(job, '%x-%j')}"]
    requests += [*task_options(job), *options.directives()]
    requests += ["--requeue" if options.requeue else "--no-requeue", "--open-mode=append"]
    requests.append(f"--signal=B:TERM@{int(job.rules.grace_seconds) + 60}")
    command = [sys.executable, "-m", "stratagem", "run", "--on=slurm", *options.flags()]
    lines = ["#!/bin/sh", *(f"#SBATCH {_one_word(request)}" for request in requests)]
    lines.append(f"# {json.dumps(job.to_json())}")
    return "\n".join([*lines, f"exec {shlex.join([*command, *job_flags(job)])}"])


def submit_and_follow(job: JobDescription, options: SlurmOptions, console: Console) -> int:
    """Submits a job, shows what it prints until it is over, and returns its exit code.

    Ctrl-C cancels the job. Who only wants to stop looking uses ``detach``.

    Raises:
        LaunchError: If Slurm does not take it.
    """
    # Slurm keeps the environment of a job, where its administrators can read it.
    environment = {name: text for name, text in os.environ.items() if name != SECRET_VARIABLE}
    if job.log_dir is not None:
        Path(job.log_dir).mkdir(parents=True, exist_ok=True)
    script = batch_script(job, options)
    said = slurm("sbatch", "--parsable", script=script, environment=environment)
    job_id = said.strip().split(";")[0]
    output = _output_file(job, f"{job.name}-{job_id}")
    console.message(f"submitted job {job_id}; its output goes to {output}")
    if options.detach:
        return 0
    try:
        return _follow(job_id, output, console)
    except KeyboardInterrupt:
        slurm("scancel", job_id)
        console.message(f"cancelled job {job_id}")
        raise


def slurm(
    command: str,
    *arguments: str,
    script: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Returns what one of Slurm's commands prints.

    Raises:
        LaunchError: If it is not installed, or fails.
    """
    if shutil.which(command) is None:
        raise LaunchError(
            f"--on slurm needs Slurm's commands, but {command} is not found. Run it on a machine of "
            "the cluster from which jobs are submitted."
        )
    try:
        done = subprocess.run(
            [command, *arguments],
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS_FOR_A_COMMAND,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"Slurm must answer within {_SECONDS_FOR_A_COMMAND:g} s, but {command} does not. Check "
            "that its controller runs (scontrol ping)."
        ) from None
    if done.returncode != 0:
        raise LaunchError(f"Slurm refused: {done.stderr.strip() or command}")
    return done.stdout


def _follow(job_id: str, output: Path, console: Console) -> int:
    splitter, position, last_state = LineSplitter(), 0, ""
    while True:
        state, reason, exit_code = _look(job_id)
        position = _show_new_output(output, position, splitter, console)
        if state in _OVER and (state == "COMPLETED" or _stays_over(job_id)):
            for line in splitter.flush():
                console.foreign_line(line, is_error=False)
            console.message(f"job {job_id}: {state.lower()}")
            return exit_code
        said = f"{state.lower()}{f' ({reason})' if reason else ''}"
        if said != last_state:
            console.message(f"job {job_id}: {said}")
        last_state = said
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _stays_over(job_id: str) -> bool:
    """Returns whether a job is over; one that is to be queued again is so for a moment only."""
    time.sleep(_SECONDS_TO_QUEUE_AGAIN)
    return _look(job_id)[0] in _OVER


def _look(job_id: str) -> tuple[str, str, int]:
    """Returns the state of a job, why it is in it, and its exit code as a shell would give it."""
    shown = slurm("scontrol", "--oneliner", "show", "job", job_id)
    found = dict(re.findall(r"(JobState|Reason|ExitCode)=(\S+)", shown))
    state, reason = found.get("JobState", ""), found.get("Reason", "None")
    code, _, number = found.get("ExitCode", "0:0").partition(":")
    exit_code = int(code) or (128 + int(number or 0) if int(number or 0) else 0)
    if state == "TIMEOUT":
        exit_code = _KILLED_FOR_TIME
    elif state in _OVER and state != "COMPLETED" and not exit_code:
        exit_code = _WITHOUT_CODE
    return state, "" if reason == "None" else reason, exit_code


def _show_new_output(path: Path, position: int, splitter: LineSplitter, console: Console) -> int:
    try:
        with path.open("rb") as file:
            file.seek(position)
            chunk = file.read()
    except FileNotFoundError:  # it has not begun
        return position
    for line in splitter.feed(chunk):
        console.foreign_line(line, is_error=False)
    return position + len(chunk)


def _output_file(job: JobDescription, name: str) -> Path:
    return Path(job.log_dir or ".").absolute() / f"{name}.out"


def _one_word(request: str) -> str:
    # sbatch reads directives as a shell does, but for variables.
    return request if re.fullmatch(r"[\w@%:+=,./-]+", request) else f'"{request}"'
