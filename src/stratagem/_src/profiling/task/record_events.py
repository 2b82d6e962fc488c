"""Converts a recorded profile to plain events in rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from stratagem._src.jax_compat.profiler_session import planes_of
from stratagem._src.profiling.task.task_profile import TaskProfile

__all__ = ["RecordedEvent", "lanes", "recorded_events"]

_DEVICE = re.compile(r"/device:(\w+):(\d+)")
_COLLECTIVE = re.compile(
    r"(psum|pmean|pmin|pmax|ppermute|(all|reduce|collective|ragged)[-_](reduce|gather|to|scatter|"
    r"permute|all|broadcast))"
)
# Zero-length events with which the profiler tracks tasks of thread pools.
_BOOKKEEPING = ("ThreadpoolListener::", "end: ")


class RecordedEvent(NamedTuple):
    """A recorded event.

    Attributes:
        row: The row in which it is shown: a replica or a thread.
        name: The name of the event.
        kind: The category of the event.
        begin_ns: Its start, in nanoseconds since the requested origin.
        duration_ns: Its duration.
        details: Additional attributes.
    """

    row: str
    name: str
    kind: str
    begin_ns: float
    duration_ns: float
    details: dict[str, Any]


def recorded_events(profile: TaskProfile, since_ns: int) -> Iterator[RecordedEvent]:
    """Yields the events of a task's profile, those of replicas first.

    Args:
        profile: The profile of the task.
        since_ns: The origin of times, as Unix time in nanoseconds of the leader's clock.
    """
    planes = planes_of(profile.record)
    start = profile.counts_from_ns - since_ns
    of_threads: list[RecordedEvent] = []
    of_devices: dict[str, list[RecordedEvent]] = {}
    for plane in planes:
        device = _DEVICE.fullmatch(plane.name)
        for number, line in enumerate(plane.lines):
            row = f"{line.name} {number}" if device is None else line.name
            operation_ends, where = 0.0, ""
            for event in sorted(line.events, key=lambda e: (e.start_ns, -e.duration_ns)):
                details = dict(event.stats)
                if event.name.startswith(_BOOKKEEPING):
                    continue
                found = RecordedEvent(
                    row,
                    event.name,
                    str(details.get("kind", _kind(event.name, details))),
                    start + event.start_ns,
                    event.duration_ns,
                    {key: value for key, value in details.items() if key[0] != "_"},
                )
                if device is not None:
                    where = f"{_device_name(profile, int(device[2]))}: {line.name}"
                    of_devices.setdefault(where, []).append(found)
                elif "device_ordinal" in details and "hlo_op" in details:
                    # On CPU the threads of a pool run the operations of a device.
                    where = _device_name(profile, int(details["device_ordinal"]))
                    operation_ends = event.start_ns + event.duration_ns
                    of_devices.setdefault(where, []).append(found)
                elif "kind" in details and event.start_ns < operation_ends:
                    of_devices[where].append(found)  # a span inside the operation
                else:
                    of_threads.append(found)
    for where in sorted(of_devices, key=_in_order):
        yield from _in_lanes(where, of_devices[where])
    # Rows with spans of this library first.
    interesting = {event.row for event in of_threads if event.kind != "host"}
    yield from sorted(of_threads, key=lambda event: event.row not in interesting)


def _kind(name: str, details: dict[str, Any]) -> str:
    if "hlo_op" in details or "hlo_module" in details:
        return "collective" if _COLLECTIVE.match(name) else "compute"
    return "host"


def _device_name(profile: TaskProfile, device: int) -> str:
    replica = profile.replicas.get(device)
    return f"device {device}" if replica is None else f"replica {replica} (device {device})"


def _in_order(row: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row)]


def _in_lanes(where: str, events: list[RecordedEvent]) -> Iterator[RecordedEvent]:
    blocks = [(event.begin_ns, event.begin_ns + event.duration_ns) for event in events]
    for event, lane in zip(events, lanes(blocks), strict=True):
        yield event._replace(row=f"{where}, {lane + 1}" if lane else where)


def lanes(blocks: Sequence[tuple[float, float]]) -> list[int]:
    """Assigns a lane to each block of time, so that blocks of one lane nest or do not overlap.

    Blocks are ``(begin, end)``. The assignment is greedy, so the number of lanes may not be minimal.

    >>> from stratagem._src.profiling.task.record_events import lanes
    >>> lanes([(0, 10), (2, 3), (5, 12), (12, 13)])
    [0, 0, 1, 0]
    """
    # For each lane, the ends of the blocks that enclose the current time.
    rows: list[list[float]] = []
    chosen = [0] * len(blocks)
    for number in sorted(range(len(blocks)), key=lambda i: (blocks[i][0], -blocks[i][1])):
        begin, end = blocks[number]
        for ends in rows:
            while ends and ends[-1] <= begin:
                ends.pop()
        fitting = (row for row, ends in enumerate(rows) if not ends or end <= ends[-1])
        chosen[number] = row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(end)
    return chosen
