"""``main``: dispatches to the command and converts errors to exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from stratagem._src.cli import doctor, island_server, run, timeline, top
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
    timeline.add_command(commands)
    doctor.add_command(commands)
    island_server.add_command(commands)
    options = parser.parse_args(arguments)
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
