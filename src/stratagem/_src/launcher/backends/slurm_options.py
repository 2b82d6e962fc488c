"""``SlurmOptions``: what is asked of Slurm beside what the job description says."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.script_values import check_one_line, check_word
from stratagem._src.transport.local_secret import local_secret_path

__all__ = ["SlurmOptions"]

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
_OURS = ("--ntasks", "-n", "--wrap", "--array", "-a", "--export", "--parsable", "--output", "-o")


@dataclass(frozen=True)
class SlurmOptions:
    """What is asked of Slurm beside what the job description says.

    >>> from stratagem._src.launcher.backends.slurm_options import SlurmOptions
    >>> SlurmOptions(partition="gpu", nodes=2).directives()
    ['--partition=gpu', '--nodes=2']

    Attributes:
        partition: The partition; empty for the default one.
        account: Who is charged; empty for the default one.
        time_limit: The longest the job may run, as Slurm writes it.
        nodes: How many nodes to spread the tasks over; ``None`` leaves it to Slurm.
        requeue: Whether the job is queued again when it is preempted, or its time is nearly over.
        extra: More options of ``sbatch``, as they are.
        shared_dir: A folder that all nodes see, for the secret; empty for one in the user's home.
        detach: Whether to return when the job is submitted.
        start_seconds: How long the tasks of a step may take to start.

    Raises:
        LaunchError: If an option of ``sbatch`` would contradict what the back end says itself, or a
            value would be more than one line or word of the script.
    """

    partition: str = ""
    account: str = ""
    time_limit: str = ""
    nodes: int | None = None
    requeue: bool = False
    extra: tuple[str, ...] = ()
    shared_dir: str = ""
    detach: bool = False
    start_seconds: float = 300.0

    def __post_init__(self) -> None:
        check_word("--partition", self.partition)
        check_word("--account", self.account)
        check_word("--time", self.time_limit)
        check_one_line("--shared-dir", self.shared_dir)
        for option in self.extra:
            name = option.partition("=")[0]
            if not option.startswith("-") or name in _OURS:
                raise LaunchError(
                    "--slurm-option must be an option of sbatch that 'stratagem run' does not set "
                    f"itself, such as --slurm-option=--qos=long, got {option!r}."
                )
            check_one_line("--slurm-option", option)

    @property
    def time_limit_seconds(self) -> float:
        """The time limit; infinite where it is Slurm's to say, or to refuse.

        >>> SlurmOptions(time_limit="1-12:30").time_limit_seconds
        131400.0
        """
        found = _TIME.fullmatch(self.time_limit)
        if found is None:
            return math.inf
        days, numbers = found["days"], [int(number) for number in found["rest"].split(":")]
        if days is None:  # minutes, minutes:seconds or hours:minutes:seconds
            hours, minutes, seconds = numbers if len(numbers) == 3 else [0, *numbers, 0][:3]
        else:
            hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60.0 + seconds

    def directives(self) -> list[str]:
        """Returns the options of ``sbatch`` that ask for what these say."""
        options = [f"--partition={self.partition}"] * bool(self.partition)
        options += [f"--account={self.account}"] * bool(self.account)
        options += [f"--time={self.time_limit}"] * bool(self.time_limit)
        options += [] if self.nodes is None else [f"--nodes={self.nodes}"]
        return [*options, *self.extra]

    def flags(self) -> list[str]:
        """Returns the flags of ``stratagem run`` that matter inside the allocation."""
        flags = ["--requeue"] * self.requeue
        return flags + ([f"--shared-dir={self.shared_dir}"] if self.shared_dir else [])

    def secret_dir(self) -> Path:
        """Returns the folder for the secrets of jobs."""
        if self.shared_dir:
            return Path(self.shared_dir)
        return local_secret_path().parent / "slurm"
