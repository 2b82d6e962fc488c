"""``RecoveryTimes``: how long a job needs to train again after failures. Events in, notes out."""

from __future__ import annotations

from stratagem._src.telemetry.monitoring.job_events import Event

__all__ = ["RecoveryTimes"]


class RecoveryTimes:
    """Follows restarts, and reports each when the restarted task makes its first step.

    A task that makes no steps of its own, such as a parameter server, has recovered when it is heard of.

    >>> from stratagem._src.telemetry.monitoring.recovery_times import RecoveryTimes
    >>> times = RecoveryTimes()
    >>> ended = {"event": "task_ended", "time": 10.0, "task": "worker 1", "failed": True}
    >>> started = {"event": "task_started", "time": 10.1, "task": "worker 1", "reason": "killed"}
    >>> sample = {"event": "sample", "time": 13.2, "task": "worker 1", "process": 2, "steps": 1}
    >>> [note["text"] for event in (ended, started, sample) for note in times.notes_after(event)]
    ['worker 1 trains again, 3.2 s after it failed']
    """

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._failures: dict[str, float] = {}
        self._restarted: dict[str, float] = {}
        self._first_failure: tuple[str, float] | None = None

    def notes_after(self, event: Event) -> list[Event]:
        """Processes an event, and returns the notes that follow from it."""
        match event["event"]:
            case "task_ended" if event["failed"]:
                self._failures[event["task"]] = event["time"]
            case "task_started":
                task = event["task"]
                self._restarted[task] = self._failures.pop(task, event["time"])
            case "attempt_started":
                self._restart_all(event)
            case "sample":
                return self._after_sample(event)
        return []

    def _restart_all(self, event: Event) -> None:
        self._restarted.clear()
        failed = sorted(self._failures.items(), key=lambda item: item[1])
        self._first_failure = failed[0] if event["attempt"] and failed else None
        self._failures.clear()
        self._processes.clear()

    def _after_sample(self, event: Event) -> list[Event]:
        task, process = event["task"], event["process"]
        is_late = task in self._restarted and self._processes.get(task) == process
        if is_late:  # the last sample of the process that has failed
            return []
        if not event["steps"] and not _serves(event):
            return []
        self._processes[task] = process
        began = self._restarted.pop(task, None)
        if began is not None:
            again = "runs" if _serves(event) else "trains"
            return [
                _note(event, f"{task} {again} again, {event['time'] - began:.1f} s after it failed")
            ]
        if self._first_failure is not None and event["steps"]:
            failed, began = self._first_failure
            self._first_failure = None
            text = f"the job trains again, {event['time'] - began:.1f} s after {failed} failed"
            return [_note(event, text)]
        return []


def _serves(event: Event) -> bool:
    return "parameter_server" in event.get("figures", {})


def _note(event: Event, text: str) -> Event:
    return {
        "time": event["time"],
        "event": "note",
        "task": event["task"],
        "kind": "recovery",
        "text": text,
    }
