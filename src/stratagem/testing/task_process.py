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
    try:
        function, args, kwargs = pickle.loads((folder / "call.pickle").read_bytes())
        outcome = pickled({"result": function(*args, **kwargs)})
        exit_code = 0
    except Exception as error:
        traceback.print_exc()
        outcome = pickled_failure(error)
        exit_code = 1
    path = outcome_file(folder, task["type"], task["index"])
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(outcome)
    unfinished.replace(path)
    return exit_code


def pickled_failure(error: Exception) -> bytes:
    """Returns an exception pickled with its traceback, or the traceback alone."""
    text = "".join(traceback.format_exception(error))
    named = {"raised": type(error).__name__, "traceback": text}
    try:
        whole = pickled({**named, "exception": error})
        pickle.loads(whole)  # many exceptions can be written, but not read
    except Exception:
        return pickled(named)
    return whole


def pickled(value: Any) -> bytes:
    """Returns a value pickled, functions and classes of the main program included."""
    import cloudpickle  # here, because only now is it known where modules are

    return bytes(cloudpickle.dumps(value))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
