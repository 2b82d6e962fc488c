"""``stratagem view``: shows recorded runs in the browser or terminal."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem._src.cluster.address import Address
from stratagem._src.telemetry.monitoring.recorded_runs import RecordedRuns
from stratagem._src.telemetry.monitoring.text_view import text_view

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command"]

_DESCRIPTION = """\
Shows the dashboard of jobs that have ended, from the files that 'stratagem run --events' wrote. Several
runs are shown side by side. Ctrl-C ends it.
"""


def add_command(commands: _Commands) -> None:
    """Adds ``view`` to the commands."""
    parser = commands.add_parser(
        "view",
        help="show recorded runs in the browser or terminal",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="file of --events")
    parser.add_argument(
        "--port", type=int, default=0, help="port of the page on 127.0.0.1; default: a free one"
    )
    parser.add_argument(
        "--text", action="store_true", help="print the end of the runs instead of serving a page"
    )
    parser.set_defaults(command=lambda options: _view(options.runs, options.port, options.text))


def _view(paths: Sequence[Path], port: int, text: bool) -> int:
    runs = RecordedRuns(paths)
    if text:
        print(text_view(runs.view()))
        return 0
    # Imported when used: it needs the network stack.
    from stratagem._src.telemetry.monitoring.dashboard.dashboard_server import DashboardServer

    with DashboardServer(Address("127.0.0.1", port), runs.view, key="") as server:
        print(f"dashboard: {server.link} (Ctrl-C ends it)", flush=True)
        threading.Event().wait()
    return 0
