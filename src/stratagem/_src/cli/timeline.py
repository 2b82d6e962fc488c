"""``stratagem timeline``: merges the profiles of several tasks into one timeline."""

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
Merges the profiles of all tasks in a directory into one timeline, for https://ui.perfetto.dev. sg.profiler
does this itself if all workers write to a shared directory; otherwise copy their profiles into one
directory first.
"""


def add_command(commands: _Commands) -> None:
    """Adds ``timeline`` to the commands."""
    parser = commands.add_parser(
        "timeline",
        help="merge the profiles of several tasks into one timeline",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        help="the log directory of sg.profiler, whose latest run is used; or the directory of a run, below "
        "plugins/profile",
    )
    parser.set_defaults(command=lambda options: _merge(options.directory))


def _merge(directory: Path) -> int:
    # Imported when used: it needs JAX.
    from stratagem._src.profiling.task.timeline import RUNS, merge_run

    runs = sorted(path for path in (directory / RUNS).glob("*") if path.is_dir())
    if not runs and not any(directory.glob("*.xplane.pb")):
        raise InvalidArgumentError(
            f"DIR must be a log directory of sg.profiler, or the directory of a run, got {directory}, "
            "which contains no profiles."
        )
    print(printable(str(merge_run(runs[-1] if runs else directory))))
    return 0
