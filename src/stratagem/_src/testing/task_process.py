"""The script of a task's process: calls a pickled function and writes its result to a file.

It imports nothing of the library, so that a small function starts fast. The only argument is the directory
that it shares with the caller.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import sys
import traceback
from pathlib import Path

__all__ = ["main", "outcome_file"]


def outcome_file(folder: Path, task_type: str, task_id: int) -> Path:
    """Returns the file with the outcome of a task."""
    return folder / f"{task_type}-{task_id}.outcome"


def main(folder: Path) -> int:
    """Calls the function, writes its result or exception, and returns the exit code."""
    # SIGABRT, sent at the deadline, then prints the stack of every thread.
    faulthandler.enable()
    sys.path[:] = json.loads((folder / "sys_path.json").read_text())
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    outcome: dict[str, bytes | str]
    try:
        function, args, kwargs = pickle.loads((folder / "call.pickle").read_bytes())
        outcome = {"result": _pickled(function(*args, **kwargs))}
    except Exception as error:
        traceback.print_exc()
        outcome = {
            "raised": type(error).__name__,
            "traceback": "".join(traceback.format_exception(error)),
            "exception": _pickled_if_possible(error),
        }
    path = outcome_file(folder, task["type"], task["index"])
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(outcome))
    unfinished.replace(path)
    return 0 if "result" in outcome else 1


def _pickled(value: object) -> bytes:
    import cloudpickle  # imported here, because sys.path is set in main

    return bytes(cloudpickle.dumps(value))


def _pickled_if_possible(error: Exception) -> bytes:
    try:
        return _pickled(error)
    except Exception:
        return _pickled(None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
