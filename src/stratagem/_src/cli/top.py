"""``stratagem top``: shows a running job live in the terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING

from stratagem._src.cli.keyboard import Keyboard
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.telemetry.monitoring.dashboard_client import DashboardClient
from stratagem._src.telemetry.monitoring.monitored_jobs import monitored_jobs
from stratagem._src.telemetry.monitoring.text_view import text_view

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command"]

_POLL_INTERVAL = 1.0
_ALTERNATE_SCREEN, _MAIN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_TO_END_OF_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_DESCRIPTION = """\
Shows a running job that was started with 'stratagem run --dashboard': its tasks, their steps and where the
time goes, until the job ends. q or Ctrl-C leaves it. If the output is not a terminal, prints plain text
once.
"""


def add_command(commands: _Commands) -> None:
    """Adds ``top`` to the commands."""
    parser = commands.add_parser(
        "top",
        help="show a running job in the terminal",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "address",
        nargs="?",
        metavar="ADDRESS",
        help="the link that 'stratagem run --dashboard' prints, or its HOST:PORT; default: this user's job "
        "on this machine",
    )
    parser.set_defaults(command=lambda options: _top(options.address or _only_job()))


def _only_job() -> str:
    jobs = monitored_jobs()
    if not jobs:
        raise LaunchError(
            "No job of this user with a dashboard runs on this machine. Start one with 'stratagem run "
            "--dashboard', or give the address of a job that runs elsewhere."
        )
    if len(jobs) > 1:
        addresses = "".join(f"\n  stratagem top {job.link}  # {job.name}" for job in jobs)
        raise LaunchError(f"Several jobs run on this machine. Choose one:{addresses}")
    return jobs[0].link


def _top(link: str) -> int:
    client = DashboardClient(link)
    view = client.view()
    if not sys.stdout.isatty():
        print(text_view(view))
        return 0
    sys.stdout.write(_ALTERNATE_SCREEN)
    try:
        with Keyboard() as keyboard:
            while True:
                size = shutil.get_terminal_size()
                lines = text_view(view, size.columns).split("\n")[: size.lines - 1]
                text = "".join(f"{line}{_CLEAR_TO_END_OF_LINE}\r\n" for line in lines)
                sys.stdout.write(f"{_HOME}{text}{_CLEAR_BELOW}")
                sys.stdout.flush()
                if keyboard.pressed("q", _POLL_INTERVAL):
                    break
                view = client.view()
    except UnavailableError:
        pass  # the job and its launcher have ended
    finally:
        sys.stdout.write(_MAIN_SCREEN)
        sys.stdout.flush()
    print(text_view(view, shutil.get_terminal_size().columns))
    return 0
