"""What the process of a task runs: a pickled function, whose result it leaves in a file.

It is run as a script, and imports nothing of the library, so that a function that needs little
starts fast. The only argument is the folder that it shares with the caller.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main", "outcome_file"]


def outcome_file(folder: Path, task_type: str, task_id: int) -> Path:
    """Returns where the outcome of a task is left."""
    return folder / f"{task_type}-{task_id}.outcome"


def main(folder: Path) -> int:
    """Calls the function and leaves what it returned, or what it raised; returns the exit code."""
    # So that SIGABRT, sent at the deadline, shows where every thread is.
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


def _pickled(value: Any) -> bytes:
    import cloudpickle  # here, because only now is it known where modules are

    return bytes(cloudpickle.dumps(value))


def _pickled_if_possible(error: Exception) -> bytes:
    try:
        return _pickled(error)
    except Exception:
        return _pickled(None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
