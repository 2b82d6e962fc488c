"""Merges the profiles of all tasks of a job into one timeline, for Perfetto and Chrome."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stratagem._src.profiling.task.record_events import recorded_events
from stratagem._src.profiling.task.task_profile import TaskProfile, profiles_in

__all__ = ["RUNS", "merge_run", "timeline", "write_timeline"]

RUNS = Path("plugins", "profile")
"""The directory below a log directory where TensorBoard finds runs."""


def timeline(profiles: Sequence[TaskProfile]) -> dict[str, Any]:
    """Returns the profiles as one trace in Chrome's format.

    Every task is a process of the trace, and each of its replicas and threads is a row. Times are
    microseconds since the start of the first recording, by the leader's clock.
    """
    origin = min(profile.counts_from_ns for profile in profiles)
    recorded = [list(recorded_events(profile, origin)) for profile in profiles]
    shown: list[dict[str, Any]] = []
    for number, (profile, events) in enumerate(zip(profiles, recorded, strict=True), 1):
        rows = {row: n for n, row in enumerate(dict.fromkeys(event.row for event in events), 1)}
        shown += _names(number, profile, rows)
        shown += [
            {
                "ph": "X",
                "pid": number,
                "tid": rows[event.row],
                "name": event.name,
                "cat": event.kind,
                "ts": round(event.begin_ns / 1e3, 3),
                "dur": round(event.duration_ns / 1e3, 3),
                "args": event.details,
            }
            for event in events
        ]
    clocks = {
        profile.task: {
            "ahead_us": profile.clock.ahead_ns / 1e3,
            "within_us": profile.clock.within_ns / 1e3,
        }
        for profile in profiles
    }
    return {
        "displayTimeUnit": "ms",
        "otherData": {"began_ns": origin, "clocks": clocks},
        "traceEvents": shown,
    }


def _names(number: int, profile: TaskProfile, rows: dict[str, int]) -> Iterator[dict[str, Any]]:
    def named(what: str, tid: int, **args: str | int) -> dict[str, Any]:
        return {"ph": "M", "pid": number, "tid": tid, "name": what, "args": args}

    yield named("process_name", 0, name=profile.task)
    yield named("process_sort_index", 0, sort_index=number)
    for row, tid in rows.items():
        yield named("thread_name", tid, name=row)
        yield named("thread_sort_index", tid, sort_index=tid)


def write_timeline(profiles: Sequence[TaskProfile], path: Path) -> None:
    """Writes the profiles as one compressed trace."""
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as file:
        json.dump(timeline(profiles), file, separators=(",", ":"), default=str)


def merge_run(run: Path) -> Path:
    """Merges all profiles of a run into one timeline, and returns the file, next to ``plugins``.

    Args:
        run: The directory of the run, below ``plugins/profile``.

    Raises:
        InvalidArgumentError: If there are no profiles.
    """
    profiles = profiles_in(run)
    merged = run.parent.parent.parent / f"{run.name}.trace.json.gz"
    write_timeline(profiles, merged)
    return merged
