"""``stratagem migrate``: rewrites programs for TensorFlow with JAX's names."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem._src.core.terminal_text import printable
from stratagem._src.migrate.files import MigratedFile, find_programs, migrate_file, write
from stratagem._src.migrate.findings import Kind

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command"]

_DESCRIPTION = """\
Rewrites programs for TensorFlow as programs for JAX and Stratagem: jax.numpy and jax.nn where they compute
the same, stratagem for the rest, Keras 3 in place of Keras 2. Prints a diff and changes no file without
--write. What needs work by hand (`left`) and what may behave differently (`check`) is listed on stderr.
Programs also run without it, with `import stratagem as tf`.
"""
_COLOURS = {"+": "32", "-": "31", "@": "36"}


def add_command(commands: _Commands) -> None:
    """Adds ``migrate`` to the commands."""
    parser = commands.add_parser(
        "migrate",
        help="rewrite a TensorFlow program with JAX's names",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "paths",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="a Python file, or a directory, in which every *.py file is migrated",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--write", action="store_true", help="replace the files, instead of printing a diff"
    )
    how.add_argument(
        "--check",
        action="store_true",
        help="print no diff; the exit code is 1 if a file would change",
    )
    parser.set_defaults(command=_migrate)


def _migrate(options: argparse.Namespace) -> int:
    # All of them before the first is written: a file that is not Python leaves the others alone, too.
    files = [migrate_file(path) for path in find_programs(options.paths)]
    changed = [file for file in files if file.migration.changed]
    for file in changed:
        if options.write:
            write(file)
        elif not options.check:
            _print_diff(file)
    _report(files)
    verb = "changed" if options.write else "would change"
    note = "" if options.write or not changed else "; --write changes them"
    print(f"{len(changed)} of {len(files)} files {verb}{note}", file=sys.stderr)
    return 1 if options.check and changed else 0


def _print_diff(file: MigratedFile) -> None:
    in_colour = sys.stdout.isatty()
    for line in file.diff():
        text = printable(line) if in_colour else line
        colour = _COLOURS.get(line[:1]) if in_colour else None
        print(text if colour is None else f"\x1b[{colour}m{text}\x1b[0m")


def _report(files: list[MigratedFile]) -> None:
    sys.stdout.flush()
    count: Counter[Kind] = Counter()
    for file in files:
        for finding in file.migration.findings:
            count[finding.kind] += 1
            text = f"{file.path}:{finding.line}: {finding.kind}: {finding.message}"
            print(printable(text), file=sys.stderr)
    if count:
        print(f"{count[Kind.LEFT]} left, {count[Kind.CHECK]} to check", file=sys.stderr)
