"""``text_view``: shows a job as text, for a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stratagem._src.core.terminal_text import printable

__all__ = ["text_view"]

_PARTS = ("input", "compute", "communication", "waiting", "other")
_HEADINGS = (
    *("task", "state", "steps", "steps/s", "examples/s", "step"),
    *("input", "compute", "comm", "waiting", "other", "CPU", "memory", "starts"),
)
_NUM_LEFT = 2
_MAX_NOTES = 8


def text_view(view: Mapping[str, Any], width: int = 120) -> str:
    """Returns the view of a job as lines of text.

    >>> from stratagem._src.telemetry.monitoring.job_history import JobHistory
    >>> from stratagem._src.telemetry.monitoring.text_view import text_view
    >>> history = JobHistory()
    >>> history.add({"time": 0.0, "event": "job_started", "name": "train"})
    >>> print(text_view(history.view(now=61.0)).splitlines()[0])
    train  starting  0:01:01  0 steps/s  0 examples/s

    Args:
        view: The result of ``JobHistory.view``.
        width: The maximum length of a line.
    """
    lines = [_first_line(view), ""]
    lines += _table([_HEADINGS, *map(_row, view["tasks"])])
    lines += _metrics(view["tasks"])
    notes = view["notes"][-_MAX_NOTES:]
    if notes:
        lines += ["", "errors, warnings and recoveries"]
    for note in reversed(notes):
        moment = time.strftime("%H:%M:%S", time.localtime(note["time"]))
        text = note["text"].strip().partition("\n")[0]
        task = "" if not note["task"] or text.startswith(note["task"]) else f"{note['task']}: "
        lines.append(f"  {moment} {note['kind']:<8} {task}{text}")
    # Names and messages come from the tasks and are untrusted: remove terminal control sequences.
    return "\n".join(_cut(printable(line.replace("\n", r"\n")), width) for line in lines)


def _first_line(view: Mapping[str, Any]) -> str:
    job = view["job"]
    attempt = f", restart {job['attempt']}" if job["attempt"] else ""
    seconds = int(view["now"] - job.get("started", view["now"]))
    words = [
        job["name"] or "job",
        f"{job['state']}{attempt}",
        f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}",
        f"{_number(view['steps_per_second'])} steps/s",
        f"{_number(view['examples_per_second'])} examples/s",
    ]
    if view["straggler"]:
        words.append(f"straggler: {view['straggler']}")
    return "  ".join(words)


def _row(task: Mapping[str, Any]) -> tuple[str, ...]:
    step = task["step"]
    total = sum(step[part] for part in _PARTS) if step else 0.0
    shares = [f"{100 * step[part] / total:.0f} %" if total else "" for part in _PARTS]
    return (
        task["task"],
        task["state"],
        _number(task["steps"]),
        _number(task["steps_per_second"]),
        _number(task["examples_per_second"]),
        _seconds(step["total"]) if step else "",
        *shares,
        "" if task["cpu"] is None else f"{100 * task['cpu']:.0f} %",
        "" if task["memory"] is None else _bytes(task["memory"]),
        str(task["starts"]),
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < _NUM_LEFT else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _metrics(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for task in tasks:
        for part, metrics in task["figures"].items():
            text = ", ".join(f"{_label(name)} {_metric(name, v)}" for name, v in metrics.items())
            lines.append(f"{part.replace('_', ' ')}, {task['task']}: {text}")
        if task["reported"]:
            text = ", ".join(f"{name} {_number(v)}" for name, v in task["reported"].items())
            lines.append(f"{task['task']}: {text}")
    return ["", *lines] if lines else []


def _label(name: str) -> str:
    return name.removesuffix("_seconds").removesuffix("_bytes").replace("_", " ")


def _metric(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return _bytes(value)
    if name.endswith("utilization"):
        return f"{100 * value:.0f} %"
    return _seconds(value) if name.endswith("_seconds") else _number(value)


def _number(value: float | str) -> str:
    if isinstance(value, str):  # "nan"
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}"


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
