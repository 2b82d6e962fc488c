"""``RecordedRuns``: the event logs of jobs, as the dashboard shows them after the jobs have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.telemetry.monitoring.job_events import EVENTS, Event
from stratagem._src.telemetry.monitoring.job_history import JobHistory

__all__ = ["RecordedRuns"]

# As many as a chart has pixels across; a browser also draws them quickly.
_MAX_POINTS = 2000


class RecordedRuns:
    """The runs in files that ``--events`` wrote: one as it was, or several side by side.

    Several runs are shown as if all had begun at the same time, with the name of the run before that of
    the task. A file that was appended to has several runs.

    Args:
        paths: The files.

    Raises:
        InvalidArgumentError: If a file cannot be read, or is not an event log.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        runs = [(path, run) for path in paths for run in _runs_of(path)]
        self._views = [_final_view(events) for _, events in runs]
        self._names = _names([path for path, _ in runs])

    def view(self, since: float = 0.0) -> dict[str, Any]:
        """Returns the end of the runs, and their history after the time ``since``."""
        views = self._views if since == 0.0 else [_without_history(view) for view in self._views]
        if len(views) == 1:
            return views[0]
        beside = [_beside_others(view, name) for view, name in zip(views, self._names, strict=True)]
        return {
            "now": max(view["now"] for view in beside),
            "job": {
                "name": " and ".join(self._names),
                "state": "ended",
                "attempt": 0,
                "started": 0.0,
            },
            "straggler": None,
            "examples_per_second": 0.0,
            "steps_per_second": 0.0,
            "tasks": [task for view in beside for task in view["tasks"]],
            "notes": sorted(
                (note for view in beside for note in view["notes"]), key=lambda note: note["time"]
            ),
            "is_recorded": True,
        }


def _runs_of(path: Path) -> list[list[Event]]:
    try:
        # The last line is empty, or its writer was killed.
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InvalidArgumentError(
            f"RUN must be a file that 'stratagem run --events' wrote, got {path} ({error.strerror})."
        ) from None
    runs: list[list[Event]] = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            is_event = event["event"] in EVENTS and isinstance(event["time"], int | float)
        except (ValueError, TypeError, KeyError):
            is_event = False
        if not is_event:
            raise InvalidArgumentError(
                f"RUN must be a file that 'stratagem run --events' wrote, got {path}, whose line {number} "
                "is not an event of a job."
            )
        if event["event"] == "job_started" or not runs:
            runs.append([])
        runs[-1].append(event)
    if not runs:
        raise InvalidArgumentError(
            f"RUN must be a file that 'stratagem run --events' wrote, got {path}, which has no events."
        )
    return runs


def _final_view(events: Sequence[Event]) -> dict[str, Any]:
    history = JobHistory(max_points=None)
    for event in events:
        history.add(event)
    view = history.view(now=events[-1]["time"])
    for task in view["tasks"]:
        points = task["points"]
        # Every n-th, and the last one: the end of a run must not be missing.
        step = -(-len(points) // _MAX_POINTS) or 1
        task["points"] = points[::-step][::-1]
    view["job"].setdefault("started", events[0]["time"])
    if view["job"]["state"] == "running":  # its launcher was killed, or still runs
        view["job"]["state"] = "ended"
    return {**view, "is_recorded": True}


def _without_history(view: dict[str, Any]) -> dict[str, Any]:
    tasks = [{**task, "points": []} for task in view["tasks"]]
    return {**view, "tasks": tasks, "notes": []}


def _beside_others(view: dict[str, Any], name: str) -> dict[str, Any]:
    started = view["job"]["started"]

    def shifted(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "time": item["time"] - started}

    tasks = [
        {**task, "task": f"{name}: {task['task']}", "points": [shifted(p) for p in task["points"]]}
        for task in view["tasks"]
    ]
    notes = [{**shifted(note), "task": f"{name}: {note['task']}"} for note in view["notes"]]
    return {"now": view["now"] - started, "tasks": tasks, "notes": notes}


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns a different name for each run: the file's, with a number if there are several of it."""
    stems = [path.stem for path in paths]
    return [
        stem if stems.count(stem) == 1 else f"{stem} {stems[: i + 1].count(stem)}"
        for i, stem in enumerate(stems)
    ]
