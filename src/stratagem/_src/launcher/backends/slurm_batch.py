"""Submits a job to Slurm, and follows it until it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.slurm_options import SlurmOptions
from stratagem._src.launcher.backends.slurm_step import task_options
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.flag_validation import check_one_line
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.lines import LineSplitter
from stratagem._src.process.private_files import make_private_directory
from stratagem._src.transport.secret import SECRET_VARIABLE

__all__ = ["batch_script", "requeue", "submit_and_follow"]

_POLL_INTERVAL = 1.0
_COMMAND_TIMEOUT = 60.0
# Longer than a restart of the Slurm controller takes.
_RESPONSE_TIMEOUT = 300.0
_TERMINAL_STATES = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"),
    *("DEADLINE", "PREEMPTED", "REVOKED"),
)
_TIMEOUT_EXIT_CODE = 124
_SIGNAL_EARLY_SECONDS = 60
_UNKNOWN_EXIT_CODE = 1


def batch_script(job: JobDescription, options: SlurmOptions) -> str:
    """Returns the batch script of a job.

    It executes the same command, which then runs inside the allocation. Slurm signals the command, and so
    all tasks, before the time limit, somewhat earlier than their grace period. Slurm may signal up to a
    minute early, which would end a short job immediately; short jobs are signalled at their time limit.
    """
    folder = str(_output_file(job, "").parent).replace(
        "%", "%%"
    )  # escaped, because Slurm expands %
    check_one_line("--log-dir", folder)
    requests = [f"--job-name={job.name}", f"--output={folder}/%x-%j.out"]
    requests += [*task_options(job), *options.directives()]
    requests += ["--requeue" if options.requeue else "--no-requeue", "--open-mode=append"]
    seconds_before = int(job.rules.grace_seconds) + 60
    if options.time_limit_seconds >= 2 * (seconds_before + _SIGNAL_EARLY_SECONDS):
        requests.append(f"--signal=B:TERM@{seconds_before}")
    command = [sys.executable, "-m", "stratagem", "run", "--on=slurm", *options.flags()]
    lines = ["#!/bin/sh", *(f"#SBATCH {_one_word(request)}" for request in requests)]
    lines.append(f"# {json.dumps(job.to_json())}")
    return "\n".join([*lines, f"exec {shlex.join([*command, *job_flags(job)])}"])


def submit_and_follow(job: JobDescription, options: SlurmOptions, console: Console) -> int:
    """Submits a job, shows its output until it ends, and returns its exit code.

    Ctrl-C cancels the job. Use ``detach`` to submit without following.

    Raises:
        LaunchError: If Slurm rejects the job.
    """
    # Slurm stores the environment of a job, where administrators can read it.
    environment = {name: text for name, text in os.environ.items() if name != SECRET_VARIABLE}
    if job.log_dir is not None:
        make_private_directory(Path(job.log_dir))
    job_id = ""
    try:
        with _interrupts_deferred():
            submitted = _slurm(
                "sbatch",
                "--parsable",
                script=batch_script(job, options),
                environment=environment,
            )
            job_id = submitted.strip().split(";")[0]
            output = _output_file(job, f"{job.name}-{job_id}")
            console.message(f"submitted job {job_id}; its output goes to {output}")
        return 0 if options.detach else _follow(job_id, output, console)
    except KeyboardInterrupt:
        if job_id:
            _slurm("scancel", job_id)
            console.message(f"cancelled job {job_id}")
        raise


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defers Ctrl-C until the end of the block."""
    received: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def requeue(job_id: str, console: Console) -> None:
    """Requeues the Slurm job in which this process runs.

    Does nothing if the job is being cancelled, or if Slurm requeues it by itself.
    """
    if _job_status(job_id)[0] == "RUNNING":
        console.message(f"requeueing job {job_id}")  # Slurm ends this process now
        _slurm("scontrol", "requeue", job_id)


def _slurm(
    command: str,
    *arguments: str,
    script: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Returns the output of a Slurm command.

    Raises:
        LaunchError: If the command is not installed, or fails.
    """
    if shutil.which(command) is None:
        raise LaunchError(
            f"--on slurm needs Slurm's commands, but {command} is not found. Run it on a login node of "
            "the cluster."
        )
    try:
        done = subprocess.run(
            [command, *arguments],
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT,
            check=False,
            start_new_session=True,  # Ctrl-C must reach this process only
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"Slurm must respond within {_COMMAND_TIMEOUT:g} s, but {command} did not. Check "
            "that its controller is running (scontrol ping)."
        ) from None
    if done.returncode != 0:
        raise LaunchError(f"Slurm rejected the command: {done.stderr.strip() or command}")
    return done.stdout


def _follow(job_id: str, output: Path, console: Console) -> int:
    splitter, position, last_status, responded = LineSplitter(), 0, "", time.monotonic()
    while True:
        try:
            state, reason, exit_code = _job_status(job_id)
        except LaunchError as error:
            if time.monotonic() - responded > _RESPONSE_TIMEOUT:
                raise LaunchError(
                    f"Slurm has not reported the state of job {job_id} for "
                    f"{_RESPONSE_TIMEOUT:g} s; the job may still run. {error}"
                ) from None
            state, reason, exit_code = "unknown", str(error), 0
        else:
            responded = time.monotonic()
        position = _show_new_output(output, position, splitter, console)
        # A job that will be requeued is COMPLETING until it is PENDING.
        if state in _TERMINAL_STATES:
            for line in splitter.flush():
                console.foreign_line(line, is_error=False)
            console.message(f"job {job_id}: {state.lower()}")
            return exit_code
        status = f"{state.lower()}{f' ({reason})' if reason else ''}"
        if status != last_status:
            console.message(f"job {job_id}: {status}")
        last_status = status
        time.sleep(_POLL_INTERVAL)


def _job_status(job_id: str) -> tuple[str, str, int]:
    """Returns the state of a job, the reason for it, and its exit code as a shell reports it."""
    shown = _slurm("scontrol", "--oneliner", "show", "job", job_id)
    found = dict(re.findall(r"(JobState|Reason|ExitCode)=(\S+)", shown))
    state, reason = found.get("JobState", ""), found.get("Reason", "None")
    code, _, number = found.get("ExitCode", "0:0").partition(":")
    exit_code = int(code) or (128 + int(number or 0) if int(number or 0) else 0)
    if state == "TIMEOUT":
        exit_code = _TIMEOUT_EXIT_CODE
    elif state in _TERMINAL_STATES and state != "COMPLETED" and not exit_code:
        exit_code = _UNKNOWN_EXIT_CODE
    return state, "" if reason == "None" else reason, exit_code


def _show_new_output(path: Path, position: int, splitter: LineSplitter, console: Console) -> int:
    try:
        with path.open("rb") as file:
            file.seek(position)
            chunk = file.read()
    except FileNotFoundError:  # the job has not started
        return position
    for line in splitter.feed(chunk):
        console.foreign_line(line, is_error=False)
    return position + len(chunk)


def _output_file(job: JobDescription, name: str) -> Path:
    return Path(job.log_dir or ".").absolute() / f"{name}.out"


def _one_word(request: str) -> str:
    # sbatch parses directives as a shell does, except that it does not expand variables.
    if re.fullmatch(r"[\w@%:+=,./-]+", request):
        return request
    check_one_line("An sbatch option", request)
    escaped = re.sub(r'(["\\])', r"\\\1", request)
    return f'"{escaped}"'
