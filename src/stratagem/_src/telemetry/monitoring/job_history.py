"""``JobHistory``: the state of a job and its recent history. Events in, views out."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

from stratagem._src.telemetry.monitoring.job_events import Event

__all__ = ["JobHistory"]

_MAX_POINTS = 600
_MAX_NOTES = 100
_SILENT_AFTER_SECONDS = 5.0
_RUNNING = ("running", "compiling", "recovering")


@dataclass
class _TaskHistory:
    state: str = "starting"
    starts: int = 1
    text: str = ""
    latest: Event | None = None
    reported: dict[str, float] = field(default_factory=dict)
    points: collections.deque[Event] = field(default_factory=collections.deque)


class JobHistory:
    """Consumes the events of a job, and keeps a history for its views.

    Args:
        max_points: How many samples of a task to keep; ``None`` for all.

    >>> from stratagem._src.telemetry.monitoring.job_history import JobHistory
    >>> history = JobHistory()
    >>> history.add({"time": 0.0, "event": "attempt_started", "attempt": 0, "tasks": ["worker 0"]})
    >>> [(task["task"], task["state"]) for task in history.view(now=1.0)["tasks"]]
    [('worker 0', 'starting')]
    """

    def __init__(self, max_points: int | None = _MAX_POINTS) -> None:
        self._max_points = max_points
        self._job: dict[str, Any] = {"name": "", "state": "starting", "attempt": 0}
        self._tasks: dict[str, _TaskHistory] = {}
        self._notes: collections.deque[Event] = collections.deque(maxlen=_MAX_NOTES)
        self._straggler: str | None = None

    def add(self, event: Event) -> None:
        """Processes an event."""
        getattr(self, f"_{event['event']}")(event)

    def _job_started(self, event: Event) -> None:
        self._job |= {"name": event["name"], "started": event["time"]}

    def _attempt_started(self, event: Event) -> None:
        self._job |= {"state": "running", "attempt": event["attempt"]}
        self._straggler = None
        for name in event["tasks"]:
            task = self._tasks.get(name)
            if task is None:
                self._tasks[name] = _TaskHistory()
            else:
                task.state, task.starts, task.text = "starting", task.starts + 1, ""

    def _task_started(self, event: Event) -> None:
        task = self._tasks.setdefault(event["task"], _TaskHistory(starts=0))
        task.state, task.starts, task.text = "starting", task.starts + 1, ""
        self._add_note(event, "recovery", event["reason"])

    def _task_ended(self, event: Event) -> None:
        task = self._tasks.setdefault(event["task"], _TaskHistory())
        task.state = "failed" if event["failed"] else "done" if not event["exit_code"] else "ended"
        task.text = event["text"]
        if self._straggler == event["task"]:
            self._straggler = None
        if event["failed"]:
            self._add_note(event, "error", event["text"])

    def _sample(self, event: Event) -> None:
        task = self._tasks.setdefault(event["task"], _TaskHistory())
        if task.state == "starting":  # the last sample of a task that has ended may come late
            task.state = "running"
        task.latest = event
        task.reported.update(event["reported"])
        task.points.append(
            {
                "time": event["time"],
                "steps": event["steps"],
                "steps_per_second": event["steps_per_second"],
                "examples_per_second": event["examples_per_second"],
                "step": event["step"],
                "reported": event["reported"],
                "memory": event["memory"],
                "cpu": event.get("cpu"),
            }
        )
        if self._max_points is not None and len(task.points) > self._max_points:
            task.points.popleft()
        self._straggler = event["straggler"]

    def _note(self, event: Event) -> None:
        self._add_note(event, event["kind"], event["text"])

    def _job_ended(self, event: Event) -> None:
        exit_code = event["exit_code"]
        self._job |= {"state": "failed" if exit_code else "done", "exit_code": exit_code}
        if event["text"]:
            # The output of the failed tasks is already in earlier notes.
            first_line = event["text"].partition("\n")[0]
            self._add_note(event, "error" if exit_code else "note", first_line)

    def _add_note(self, event: Event, kind: str, text: str) -> None:
        task = event.get("task", "")
        self._notes.append({"time": event["time"], "kind": kind, "task": task, "text": text})

    def view(self, now: float, since: float = 0.0) -> dict[str, Any]:
        """Returns the current state, and the history after the time ``since``."""
        tasks = [self._task_view(name, task, now, since) for name, task in self._tasks.items()]
        running = [task for task in tasks if task["state"] in _RUNNING]
        return {
            "now": now,
            "job": dict(self._job),
            "straggler": self._straggler,
            "examples_per_second": sum(task["examples_per_second"] for task in running),
            "steps_per_second": _steps_per_second(running),
            "tasks": tasks,
            "notes": [note for note in self._notes if note["time"] > since],
        }

    def _task_view(self, name: str, task: _TaskHistory, now: float, since: float) -> dict[str, Any]:
        latest: Event = task.latest or {}
        state = task.state
        if state == "running" and now - latest["time"] > _SILENT_AFTER_SECONDS:
            state = "silent"
        elif state == "running":
            state = latest.get("activity") or state
        return {
            "task": name,
            "state": state,
            "starts": task.starts,
            "text": task.text,
            "process": latest.get("process"),
            "heard": latest.get("time"),
            "steps": latest.get("steps", 0),
            "examples": latest.get("examples", 0),
            "steps_per_second": latest.get("steps_per_second", 0.0),
            "examples_per_second": latest.get("examples_per_second", 0.0),
            "step": latest.get("step"),
            "reported": dict(task.reported),
            "memory": latest.get("memory"),
            "cpu": latest.get("cpu"),
            "figures": latest.get("figures", {}),
            "points": [point for point in task.points if point["time"] > since],
        }


def _steps_per_second(tasks: list[dict[str, Any]]) -> float:
    rates = [task["steps_per_second"] for task in tasks]
    # Workers of a coordinator run different steps, synchronous workers run the same ones.
    has_coordinator = any("coordinator" in task["figures"] for task in tasks)
    return sum(rates) if has_coordinator else max(rates, default=0.0)
