"""The events of a job, as plain data: one dictionary for each event, with its ``time`` and ``event``.

All views of a job are computed from these events, and ``--events`` writes them to a file.

| event | when | fields in addition to ``time`` and ``event`` |
|---|---|---|
| ``job_started`` | once | ``name`` |
| ``attempt_started`` | when all tasks start | ``attempt``, ``tasks`` |
| ``task_started`` | when a task restarts | ``task``, ``reason`` |
| ``task_ended`` | | ``task``, ``exit_code``, ``failed`` (not if the launcher stopped it), ``text`` |
| ``sample`` | every second, for every task that uses the library | see ``SampleEvents`` |
| ``note`` | | ``kind`` (``warning``, ``error`` or ``recovery``), ``text``, and ``task`` if a task sent it |
| ``job_ended`` | once | ``exit_code``, ``text`` |
"""

from __future__ import annotations

import time
from typing import Any, TypeAlias

from stratagem._src.telemetry.monitoring.sample import Sample
from stratagem._src.telemetry.monitoring.stragglers import MultiProcessPrograms, WaitingShare

__all__ = ["EVENTS", "Event", "JSONValue", "SampleEvents", "make_event"]

Event: TypeAlias = dict[str, Any]

EVENTS = frozenset(
    {
        *("job_started", "attempt_started", "task_started", "task_ended"),
        *("sample", "note", "job_ended"),
    }
)
"""The values of ``event``."""

JSONValue: TypeAlias = Any
"""A value that JSON can represent."""


def make_event(event: str, /, **details: JSONValue) -> Event:
    """Returns an event with the current time."""
    return {"time": time.time(), "event": event, **details}


class SampleEvents:
    """Converts the tasks' samples to events: rates, and where the time of a step goes.

    A ``sample`` has the task's ``steps``, ``examples``, ``steps_per_second``, ``examples_per_second``,
    ``memory`` in bytes, ``cpu``, the number of cores in use, ``activity`` (``compiling``, ``recovering`` or
    empty), ``reported`` metrics and ``figures``, the metrics of its components. ``step`` has the seconds
    of a mean step: ``total``, ``input``, ``compute``, ``communication``, ``waiting`` for other workers and
    ``other``; it is ``None`` if there was no step. ``straggler`` is the worker that the others wait for.
    """

    def __init__(self) -> None:
        self._programs = MultiProcessPrograms()
        self._processes: dict[str, int] = {}

    def of(self, sample: Sample) -> list[Event]:
        """Returns the events of a sample, with the time at which it arrived."""
        if self._processes.get(sample.task, sample.process) != sample.process:
            self._programs.forget(sample.task)
        self._processes[sample.task] = sample.process
        self._programs.add(sample.task, sample.interval.joint)
        interval = sample.interval
        seconds = interval.seconds or 1.0
        share = self._programs.shares().get(sample.task, WaitingShare())
        event = make_event(
            "sample",
            task=sample.task,
            process=sample.process,
            steps=sample.steps,
            examples=sample.examples,
            steps_per_second=interval.steps / seconds,
            examples_per_second=interval.examples / seconds,
            step=_step(sample, share) if interval.steps else None,
            reported=sample.reported,
            memory=sample.memory,
            cpu=sample.cpu,
            activity=sample.activity,
            figures=sample.figures,
            straggler=self._programs.straggler(),
        )
        return [
            event,
            *(make_event("note", task=sample.task, **_of_note(note)) for note in sample.notes),
        ]

    def forget(self, task: str) -> None:
        """Forgets the samples of a task whose process has ended."""
        self._programs.forget(task)
        self._processes.pop(task, None)


def _of_note(note: Event) -> Event:
    return {"kind": note["kind"], "text": note["text"]}


def _step(sample: Sample, share: WaitingShare) -> dict[str, float]:
    interval = sample.interval
    joint = sum(seconds for _, seconds in interval.joint)
    # Seconds of all steps together; some may have run concurrently.
    waiting = share.waited * joint
    communication = interval.communication_seconds
    compute = max(0.0, interval.program_seconds - communication - waiting)
    known = interval.program_seconds + interval.input_seconds
    parts = {
        "input": interval.input_seconds,
        "compute": compute,
        "communication": communication,
        "waiting": waiting,
        "other": max(0.0, interval.seconds - known),
        "total": interval.seconds,
    }
    return {name: seconds / interval.steps for name, seconds in parts.items()}
