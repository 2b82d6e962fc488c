"""Runs the programs of this folder with TensorFlow as they are, and here with another import line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["PROGRAMS", "RESULTS", "path_of", "run_as_script", "run_here", "run_text", "translated"]

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
_IMPORT = re.compile(r"^import tensorflow as tf$", re.MULTILINE)
# TensorFlow runs Keras 3 wrongly, or not at all, under these programs' strategies.
OF_KERAS_2 = {"central_storage", "parameter_servers"}
# They start their own file in other processes.
OF_MANY_PROCESSES = {"parameter_servers"}
PROGRAMS = sorted(
    path.stem for path in FOLDER.glob("*.py") if _IMPORT.search(path.read_text()) is not None
)


def path_of(program: str) -> Path:
    """Returns the file of a program, which is one for TensorFlow."""
    return FOLDER / f"{program}.py"


def translated(program: str) -> str:
    """Returns a program's text with the one line that differs."""
    text, number = _IMPORT.subn("import stratagem as tf", path_of(program).read_text())
    assert number == 1
    return text


def run_here(program: str) -> dict[str, Any]:
    """Returns what a program gives here, in this process, which has its devices already."""
    return run_text(program, translated(program))


def run_text(program: str, text: str) -> dict[str, Any]:
    """Returns what a program gives that has another text."""
    if program in OF_MANY_PROCESSES:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / path_of(program).name
            script.write_text(text)
            return run_as_script(script)
    namespace: dict[str, Any] = {"__name__": program, "__file__": str(path_of(program))}
    exec(compile(text, f"{program}.py", "exec"), namespace)
    return json.loads(json.dumps(namespace["main"]()))


def run_as_script(path: Path) -> dict[str, Any]:
    """Returns what a program prints last. It is a file, for AutoGraph reads its source."""
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    if path.stem in OF_KERAS_2:
        environment["TF_USE_LEGACY_KERAS"] = "1"
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400 if path.stem in OF_MANY_PROCESSES else 100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
