"""Submitting a job to Slurm, and following it until it is over."""

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
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.lines import LineSplitter
from stratagem._src.launcher.script_values import check_one_line
from stratagem._src.transport.private_folder import make_private_folder
from stratagem._src.transport.secret import SECRET_VARIABLE

__all__ = ["batch_script", "queue_again", "submit_and_follow"]

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_FOR_A_COMMAND = 60.0
# A controller that is started again takes less.
_SECONDS_WITHOUT_ANSWER = 300.0
_OVER = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"),
    *("DEADLINE", "PREEMPTED", "REVOKED"),
)
_KILLED_FOR_TIME = 124
_SECONDS_TOO_EARLY = 60
_WITHOUT_CODE = 1


def batch_script(job: JobDescription, options: SlurmOptions) -> str:
    """Returns the script that is submitted.

    It becomes the same command, which then finds itself in an allocation. Slurm signals it, and so all
    tasks, before the time is over, and some seconds more than they have to end. Slurm may be early by a
    minute, which would end a short job at once; one of those is signalled when its time is over.
    """
    folder = str(_output_file(job, "").parent).replace("%", "%%")  # which Slurm would replace
    check_one_line("--log-dir", folder)
    requests = [f"--job-name={job.name}", f"--output={folder}/%x-%j.out"]
    requests += [*task_options(job), *options.directives()]
    requests += ["--requeue" if options.requeue else "--no-requeue", "--open-mode=append"]
    seconds_before = int(job.rules.grace_seconds) + 60
    if options.time_limit_seconds >= 2 * (seconds_before + _SECONDS_TOO_EARLY):
        requests.append(f"--signal=B:TERM@{seconds_before}")
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
        make_private_folder(Path(job.log_dir))
    job_id = ""
    try:
        with _interrupts_held():
            said = _slurm(
                "sbatch",
                "--parsable",
                script=batch_script(job, options),
                environment=environment,
            )
            job_id = said.strip().split(";")[0]
            output = _output_file(job, f"{job.name}-{job_id}")
            console.message(f"submitted job {job_id}; its output goes to {output}")
        return 0 if options.detach else _follow(job_id, output, console)
    except KeyboardInterrupt:
        if job_id:
            _slurm("scancel", job_id)
            console.message(f"cancelled job {job_id}")
        raise


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Lets Ctrl-C wait until the end of the block."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def queue_again(job_id: str, console: Console) -> None:
    """Has Slurm queue the job again in which this process runs.

    One that is being cancelled is left alone, and so is one that Slurm queues again by itself.
    """
    if _look(job_id)[0] == "RUNNING":
        console.message(f"job {job_id} is queued again")  # Slurm ends this process now
        _slurm("scontrol", "requeue", job_id)


def _slurm(
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
            start_new_session=True,  # Ctrl-C is for this process
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
    splitter, position, last_said, answered = LineSplitter(), 0, "", time.monotonic()
    while True:
        try:
            state, reason, exit_code = _look(job_id)
        except LaunchError as error:
            if time.monotonic() - answered > _SECONDS_WITHOUT_ANSWER:
                raise LaunchError(
                    f"Slurm must say how job {job_id} is, but has not for "
                    f"{_SECONDS_WITHOUT_ANSWER:g} s; the job may still run. {error}"
                ) from None
            state, reason, exit_code = "unknown", str(error), 0
        else:
            answered = time.monotonic()
        position = _show_new_output(output, position, splitter, console)
        # A job that is to be queued again is COMPLETING until it is PENDING.
        if state in _OVER:
            for line in splitter.flush():
                console.foreign_line(line, is_error=False)
            console.message(f"job {job_id}: {state.lower()}")
            return exit_code
        said = f"{state.lower()}{f' ({reason})' if reason else ''}"
        if said != last_said:
            console.message(f"job {job_id}: {said}")
        last_said = said
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _look(job_id: str) -> tuple[str, str, int]:
    """Returns the state of a job, why it is in it, and its exit code as a shell would give it."""
    shown = _slurm("scontrol", "--oneliner", "show", "job", job_id)
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
    if re.fullmatch(r"[\w@%:+=,./-]+", request):
        return request
    check_one_line("An option of sbatch", request)
    escaped = re.sub(r'(["\\])', r"\\\1", request)
    return f'"{escaped}"'
