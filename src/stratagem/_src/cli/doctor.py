"""``stratagem doctor``: checks whether this process can train here, and reports problems."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command"]


def add_command(commands: _Commands) -> None:
    """Adds ``doctor`` to the commands."""
    parser = commands.add_parser(
        "doctor",
        help="check the devices and the cluster of this process",
        description="Prints versions, devices, the cluster and whether its tasks can be reached, "
        "and the time of an all-reduce, between all workers if they run this command too. The exit code "
        "is 0 if there are no problems. "
        "To check a whole cluster, start it in every task: "
        "stratagem run --workers 3 -m stratagem doctor",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_doctor)
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long to try to reach other tasks; default: 10",
    )


def _doctor(options: argparse.Namespace) -> int:
    # Imported when used: it needs JAX, and `stratagem --version` does not.
    from stratagem._src.cli.diagnosis import diagnose

    return diagnose(options.timeout)
