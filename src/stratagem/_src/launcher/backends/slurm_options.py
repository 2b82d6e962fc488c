"""``SlurmOptions``: the Slurm options of a job, in addition to the job description."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.flag_validation import check_one_line, check_word
from stratagem._src.transport.local_secret import local_secret_path

__all__ = ["SlurmOptions"]

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
_OURS = ("--ntasks", "-n", "--wrap", "--array", "-a", "--export", "--parsable", "--output", "-o")


@dataclass(frozen=True)
class SlurmOptions:
    """The Slurm options of a job, in addition to the job description.

    >>> from stratagem._src.launcher.backends.slurm_options import SlurmOptions
    >>> SlurmOptions(partition="gpu", nodes=2).directives()
    ['--partition=gpu', '--nodes=2']

    Attributes:
        partition: The partition; empty for the default one.
        account: The account to charge; empty for the default one.
        time_limit: The time limit of the job, in Slurm's format.
        nodes: The number of nodes for the tasks; ``None`` leaves it to Slurm.
        requeue: Whether to requeue the job when it is preempted or nearly reaches its time limit.
        extra: Additional options of ``sbatch``, passed unchanged.
        shared_dir: A directory that all nodes share, for the secret; empty for one in the user's home.
        detach: Whether to return when the job is submitted.
        start_seconds: The time limit for the tasks of a step to start.

    Raises:
        LaunchError: If an option of ``sbatch`` conflicts with one that the back end sets, or a value does
            not fit in one line or word of the script.
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
        """The time limit; infinite if it is not set or not in Slurm's format.

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
        """Returns the corresponding options of ``sbatch``."""
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
        """Returns the directory for the secrets of jobs."""
        if self.shared_dir:
            return Path(self.shared_dir)
        return local_secret_path().parent / "slurm"
