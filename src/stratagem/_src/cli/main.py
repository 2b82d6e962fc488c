"""``main``: dispatches to the command and converts errors to exit codes."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from collections.abc import Collection, Sequence

from stratagem._src.cli import doctor, island_server, migrate, run, timeline, top, view
from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.core.errors import StratagemError, UnavailableError
from stratagem._src.core.terminal_text import printable
from stratagem._src.core.version import __version__

__all__ = ["main"]

_FAILED = 1
_USAGE_ERROR = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``stratagem`` with arguments, by default those of the process, and returns the exit code.

    >>> from stratagem._src.cli import main
    >>> main(["run", "--workers", "0", "train.py"])
    2
    """
    parser = argparse.ArgumentParser(
        prog="stratagem", description="Distributed training on JAX.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")
    run.add_command(commands)
    top.add_command(commands)
    view.add_command(commands)
    timeline.add_command(commands)
    doctor.add_command(commands)
    migrate.add_command(commands)
    island_server.add_command(commands)
    given = list(sys.argv[1:] if arguments is None else arguments)
    _check_command(parser, commands.choices, given)
    options = parser.parse_args(given)
    try:
        return int(options.command(options))
    except StratagemError as error:
        print(f"stratagem: {printable(str(error))}", file=sys.stderr)
        is_failure = isinstance(error, (RendezvousError, UnavailableError))
        return _FAILED if is_failure else _USAGE_ERROR
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of the output is gone, as with head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _check_command(
    parser: argparse.ArgumentParser, known: Collection[str], arguments: Sequence[str]
) -> None:
    """Exits with a usage error, and the closest command, if the command is unknown."""
    name = arguments[0] if arguments else ""
    if not name or name.startswith("-") or name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Use one of {', '.join(known)}."
    if name.endswith(".py"):
        hint = f"To run a program, write: stratagem run {shlex.join(arguments)}"
    parser.error(printable(f"There is no command {name!r}. {hint}"))
