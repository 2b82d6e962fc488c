"""Runs the benchmarks of ``make bench`` and writes what they print, and where they ran, as a page.

    python benchmarks/write_page.py docs/benchmarks.md

Each runs by itself. One that fails is named in the page with its exit code.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("stratagem", "jax", "jaxlib", "numpy", "keras")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="the file to write")
    parser.add_argument("--only", nargs="*", help="names of benchmarks; default all")
    options = parser.parse_args()
    parts = [
        "# Benchmarks\n",
        "`make bench-page` writes this page from the output of `make bench`. Run it to measure your own "
        "machine. Most figures are ratios, from one run, against hand-written JAX or another library.\n",
        *machine(),
    ]
    for command in commands():
        script = Path(command[1])
        if options.only and script.stem not in options.only:
            continue
        print(f"{script.name} …", flush=True)
        parts += section(command, script)
    options.page.write_text("\n".join(parts))


def commands() -> list[list[str]]:
    """Returns what ``make bench`` runs."""
    printed = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "bench"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = [shlex.split(line) for line in printed.splitlines()]
    return [words for words in found if len(words) > 1 and words[1].startswith("benchmarks/")]


def machine() -> list[str]:
    """Returns what the figures depend on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    day = datetime.datetime.now(datetime.UTC).date()
    return [
        f"- {day}, {models[0] if models else platform.processor()}, {os.cpu_count()} cores, "
        f"{pages / 2**30:.0f} GiB, {platform.system()}",
        f"- Python {platform.python_version()}, {versions}\n",
    ]


def section(command: list[str], script: Path) -> list[str]:
    """Runs one benchmark; returns its part of the page."""
    about = ast.get_docstring(ast.parse((ROOT / script).read_text())) or ""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - start
    ended = "" if done.returncode == 0 else f", **ended with {done.returncode}**"
    shown = done.stdout.strip() or done.stderr.strip()[-2000:]
    return [
        f"## `{script}`\n",
        about.split("\n\n")[0].replace("\n", " ") + f" ({seconds:.0f} s{ended})\n",
        f"```text\n{shown}\n```\n",
    ]


if __name__ == "__main__":
    main()
