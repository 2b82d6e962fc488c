"""``stratagem timeline``: profiles of several tasks on one time line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.terminal_text import printable

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command"]

_DESCRIPTION = """\
Puts the profiles of all tasks in a folder on one time line, for https://ui.perfetto.dev. sg.profiler does
that by itself where all workers write to a directory that they share; elsewhere copy what they wrote into
one folder first.
"""


def add_command(commands: _Commands) -> None:
    """Adds ``timeline`` to the commands."""
    parser = commands.add_parser(
        "timeline",
        help="put profiles of several tasks on one time line",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        help="the directory that sg.profiler was given, of which the latest run is taken; or the folder of "
        "a run, below plugins/profile",
    )
    parser.set_defaults(command=lambda options: _merge(options.directory))


def _merge(directory: Path) -> int:
    # Imported when used: it needs JAX.
    from stratagem._src.profiling.task.timeline import RUNS, merge_run

    runs = sorted(path for path in (directory / RUNS).glob("*") if path.is_dir())
    if not runs and not any(directory.glob("*.xplane.pb")):
        raise InvalidArgumentError(
            f"DIR must be a directory that sg.profiler was given, or a folder of a run, got {directory}, "
            "in which there are no profiles."
        )
    print(printable(str(merge_run(runs[-1] if runs else directory))))
    return 0
