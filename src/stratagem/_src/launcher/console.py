"""``Console``: the launcher's output, with the task's name in front of every line."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from typing import TextIO

from stratagem._src.cluster.leadership import Task
from stratagem._src.core.terminal_text import plain_output, printable, printable_output

__all__ = ["Console", "uses_colour"]

_CLEAR_LINE = "\r\x1b[K"
_RESET = "\x1b[0m"
_OTHERS = 0o077
# Not red, which stands for errors, nor black and white, which vanish on some terminals.
_COLOURS = tuple(f"\x1b[{code}m" for code in (36, 33, 35, 32, 34, 96, 93, 95, 92, 94))


def uses_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Returns whether to colour the output of a stream.

    >>> import io
    >>> from stratagem._src.launcher.console import uses_colour
    >>> uses_colour(io.StringIO(), {})
    False
    """
    is_plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return not is_plain and stream.isatty()


class Console:
    """Writes the lines of tasks, each with a prefix, and the launcher's own messages.

    >>> import sys
    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.console import Console
    >>> console = Console(sys.stdout, sys.stdout)
    >>> console.expect([Task("worker", 0), Task("worker", 10)])
    >>> console.line(Task("worker", 0), "step 1", is_error=False)
    [worker 0]  step 1

    Args:
        output: Receives the output of tasks.
        errors: Receives their error output and the launcher's messages.
        speaks: Whether to write the launcher's messages; ``False`` if another launcher of the job does.
    """

    def __init__(self, output: TextIO, errors: TextIO, *, speaks: bool = True) -> None:
        self._speaks = speaks
        self._streams = (output, errors)
        self._coloured = tuple(uses_colour(stream, os.environ) for stream in self._streams)
        self._prefixes: dict[Task, tuple[str, str]] = {}
        self._are_terminals = tuple(stream.isatty() for stream in self._streams)
        self._progress: tuple[Task, str] | None = None
        self._are_broken = [False, False]

    def expect(self, tasks: list[Task]) -> None:
        """Sets the tasks of the job, so that their prefixes align."""
        names = [printable(f"[{task}]") for task in tasks]
        width = max(map(len, names))
        for number, (task, name) in enumerate(zip(tasks, names, strict=True)):
            plain = f"{name:<{width}} "
            self._prefixes[task] = (plain, f"{_COLOURS[number % len(_COLOURS)]}{plain}{_RESET}")

    def line(self, task: Task, text: str, is_error: bool) -> None:
        """Writes a line of a task."""
        prefix = self._prefixes[task][self._coloured[is_error]]
        self._write(self._streams[is_error], f"{prefix}{self._shown(text, is_error)}\n", ended=task)

    def progress(self, task: Task, text: str) -> None:
        """Shows a task's progress bar on the last line of the terminal, until the task writes a line.

        Without a terminal this does nothing; the last state of the bar becomes a line of output.
        """
        if not all(self._are_terminals):
            return
        plain, shown = self._prefixes[task][0], self._prefixes[task][self._coloured[1]]
        # One column stays free: some terminals wrap after the last one.
        width = max(0, shutil.get_terminal_size().columns - len(plain) - 1)
        self._write(self._streams[1], "", progress=(task, shown + plain_output(text)[:width]))

    def foreign_line(self, text: str, is_error: bool) -> None:
        """Writes a line unchanged: another launcher has added the task's prefix."""
        self._write(self._streams[is_error], f"{self._shown(text, is_error)}\n")

    def message(self, text: str) -> None:
        """Writes a message of the launcher; indented lines continue the previous line."""
        if self._speaks:
            self.own_message(text)

    def own_message(self, text: str) -> None:
        """Writes a message that only this launcher of the job can know."""
        lines = (
            line if line.startswith(" ") else f"stratagem: {line}" for line in text.split("\n")
        )
        text = "\n".join(self._shown(line, is_error=True) for line in lines)
        self._write(self._streams[1], f"{text}\n")

    def private_message(self, text: str) -> None:
        """Writes a message for this user only: removes others' access if the stream is a file."""
        with contextlib.suppress(OSError, ValueError):  # not a file, or not owned by this user
            descriptor = self._streams[1].fileno()
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_OTHERS)
        self.message(text)

    def _shown(self, text: str, is_error: bool) -> str:
        """Returns a line without terminal control sequences; files receive it unchanged."""
        return printable_output(text) if self._are_terminals[is_error] else text

    def _write(
        self,
        stream: TextIO,
        text: str,
        progress: tuple[Task, str] | None = None,
        ended: Task | None = None,
    ) -> None:
        number = self._streams.index(stream)
        if self._are_broken[number]:
            return
        if self._progress is not None:
            text = _CLEAR_LINE + text
            if self._progress[0] == ended:
                self._progress = None
        self._progress = progress or self._progress
        if self._progress is not None:
            text += self._progress[1]
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError) as error:
            # The reader is gone, the disk is full, or the stream is closed. The job continues without it.
            self._are_broken[number] = True
            _discard(stream)
            name = ("output", "error output")[number]
            reason = error.strerror if isinstance(error, OSError) else error
            text = f"stratagem: The launcher's {name} is incomplete: {reason}. The job continues.\n"
            self._write(self._streams[1 - number], text)


def _discard(stream: TextIO) -> None:
    """Redirects a broken stream to ``/dev/null``: Python would fail to flush it at exit."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), stream.fileno())
