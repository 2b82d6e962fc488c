"""``stratagem top``: shows a running job live in the terminal."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.telemetry.monitoring.dashboard_client import DashboardClient
from stratagem._src.telemetry.monitoring.monitored_jobs import monitored_jobs
from stratagem._src.telemetry.monitoring.text_view import text_view

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["Keyboard", "add_command"]


try:
    import termios
    import tty
except ImportError:  # Windows has neither; there only Ctrl-C ends a view
    termios = tty = None  # type: ignore[assignment]


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


class Keyboard:
    """Reads keys while it is open, and restores the terminal's settings afterwards.

    Without a terminal as standard input, no key is ever pressed.
    """

    def __init__(self) -> None:
        self._settings: list[Any] | None = None
        self._file = -1

    def __enter__(self) -> Keyboard:
        if termios is not None and sys.stdin is not None and sys.stdin.isatty():
            self._file = sys.stdin.fileno()
            self._settings = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)  # keys arrive at once and are not echoed; Ctrl-C still works
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._settings is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._settings)

    def pressed(self, key: str, seconds: float) -> bool:
        """Waits up to ``seconds``, and returns whether ``key`` was pressed.

        Args:
            key: A character.
            seconds: How long to wait for it.
        """
        if self._settings is None:
            time.sleep(seconds)
            return False
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if not select.select([self._file], [], [], max(left, 0.0))[0]:
                return False
            typed = os.read(self._file, 1024)  # sys.stdin would buffer keys where select sees none
            if key.encode() in typed:
                return True
            if not typed:  # the terminal is gone
                time.sleep(max(left, 0.0))
                return False
