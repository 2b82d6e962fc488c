"""What happens in a job, as plain data: one dictionary for each event, with its ``time`` and ``event``.

Everything that is shown of a job is made from its events, and ``--events`` writes them to a file.

| event | when | beside ``time`` and ``event`` |
|---|---|---|
| ``job_started`` | once | ``name`` |
| ``attempt_started`` | when all tasks start | ``attempt``, ``tasks`` |
| ``task_started`` | when one starts again | ``task``, ``reason`` |
| ``task_ended`` | | ``task``, ``exit_code``, ``failed`` (not if the launcher ended it), ``text`` |
| ``sample`` | every second, of every task that uses the library | see ``SampleEvents`` |
| ``note`` | | ``kind`` (``warning``, ``error`` or ``recovery``), ``text``, and ``task`` if one says it |
| ``job_ended`` | once | ``exit_code``, ``text`` |
"""

from __future__ import annotations

import time
from typing import Any, TypeAlias

from stratagem._src.telemetry.monitoring.sample import Sample
from stratagem._src.telemetry.monitoring.waiting import JointPrograms, WaitingShare

__all__ = ["Event", "SampleEvents", "make_event"]

Event: TypeAlias = dict[str, Any]


def make_event(event: str, /, **details: Any) -> Event:
    """Returns an event that happens now."""
    return {"time": time.time(), "event": event, **details}


class SampleEvents:
    """Makes events of the tasks' samples: rates, and where the time of a step goes.

    A ``sample`` has the task's ``steps``, ``examples``, ``steps_per_second``, ``examples_per_second``,
    ``memory`` in bytes, ``reported`` figures and ``figures`` of its parts. ``step`` has the seconds of a
    mean step: in ``total``, of ``input``, ``compute``, ``communication``, ``waiting`` for other workers and
    ``other``; it is ``None`` if there was none. ``straggler`` names the worker for which the others wait.
    """

    def __init__(self) -> None:
        self._programs = JointPrograms()
        self._processes: dict[str, int] = {}

    def of(self, sample: Sample) -> list[Event]:
        """Returns the events that a sample tells of, with the time at which it has come."""
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
            figures=sample.figures,
            straggler=self._programs.straggler(),
        )
        return [
            event,
            *(make_event("note", task=sample.task, **_of_note(note)) for note in sample.notes),
        ]

    def forget(self, task: str) -> None:
        """Takes in that a task's process is gone."""
        self._programs.forget(task)
        self._processes.pop(task, None)


def _of_note(note: Event) -> Event:
    return {"kind": note["kind"], "text": note["text"]}


def _step(sample: Sample, share: WaitingShare) -> dict[str, float]:
    interval = sample.interval
    joint = sum(seconds for _, seconds in interval.joint)
    # Seconds of all steps together, of which some can have run at the same time.
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
