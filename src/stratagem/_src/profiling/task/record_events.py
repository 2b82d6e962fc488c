"""What a profile recorded, as plain events in rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from stratagem._src.profiling.task.lanes import lanes
from stratagem._src.profiling.task.task_profile import TaskProfile

__all__ = ["RecordedEvent", "recorded_events"]

_DEVICE = re.compile(r"/device:(\w+):(\d+)")
_COLLECTIVE = re.compile(
    r"(psum|pmean|pmin|pmax|ppermute|(all|reduce|collective|ragged)[-_](reduce|gather|to|scatter|"
    r"permute|all|broadcast))"
)
# What the profiler needs to know which task of a pool came from where, and has no length.
_BOOKKEEPING = ("ThreadpoolListener::", "end: ")


class RecordedEvent(NamedTuple):
    """Something that took time.

    Attributes:
        row: Where it is shown: a replica, or a thread.
        name: What it is.
        kind: What such events have in common.
        begin_ns: When it began, in nanoseconds since the moment that was asked for.
        duration_ns: How long it took.
        details: More about it.
    """

    row: str
    name: str
    kind: str
    begin_ns: float
    duration_ns: float
    details: dict[str, Any]


def recorded_events(profile: TaskProfile, since_ns: int) -> Iterator[RecordedEvent]:
    """Yields what was recorded of a task, its replicas first.

    Args:
        profile: Of the task.
        since_ns: From when times count, in nanoseconds since 1970 by the leading process's clock.
    """
    planes = list(jax.profiler.ProfileData.from_serialized_xspace(profile.record).planes)
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
                    # On CPU the threads of a pool do what a device does.
                    where = _device_name(profile, int(details["device_ordinal"]))
                    operation_ends = event.start_ns + event.duration_ns
                    of_devices.setdefault(where, []).append(found)
                elif "kind" in details and event.start_ns < operation_ends:
                    of_devices[where].append(found)  # a part of the operation
                else:
                    of_threads.append(found)
    for where in sorted(of_devices, key=_in_order):
        yield from _in_lanes(where, of_devices[where])
    # Rows with something of ours first.
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
