"""Reads a trace in Chrome's format, and says where it breaks the format's rules."""

import gzip
import json
from collections import defaultdict
from typing import NamedTuple

NANOSECOND = 0.001
NAMES = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


class Shown(NamedTuple):
    """An event as it is seen: of which task, in which row."""

    task: str
    row: str
    name: str
    kind: str
    begin: float
    end: float
    args: dict


def read_trace(path):
    """Returns what a file shows, after checking it.

    The rules are those of the "Trace Event Format": an object with ``traceEvents``; complete events ("X")
    have a name, numbers ``ts`` and ``dur``, and whole numbers ``pid`` and ``tid``; those of a thread
    lie in each other or apart; metadata ("M") names processes and threads.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trace = json.load(file, parse_constant=_refuse)
    return check_trace(trace)


def _refuse(text):
    raise AssertionError(f"{text} is not JSON")


def check_trace(trace):
    names = {"process_name": {}, "thread_name": {}}
    threads = defaultdict(list)
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int), event
        assert isinstance(event["tid"], int), event
        if event["ph"] == "M":
            assert event["name"] in NAMES, event
            if event["name"] in names:
                key = (
                    event["pid"]
                    if event["name"] == "process_name"
                    else (event["pid"], event["tid"])
                )
                assert key not in names[event["name"]], event
                names[event["name"]][key] = event["args"]["name"]
            continue
        assert event["ph"] == "X", event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert isinstance(event["cat"], str), event
        assert event["ts"] >= 0, event
        assert event["dur"] >= 0, event
        assert isinstance(event["args"], dict), event
        threads[event["pid"], event["tid"]].append(event)
    for (pid, tid), events in threads.items():
        assert pid in names["process_name"]
        assert (pid, tid) in names["thread_name"]
        check_nesting(events)
    return [
        Shown(
            names["process_name"][pid],
            names["thread_name"][pid, tid],
            event["name"],
            event["cat"],
            event["ts"],
            event["ts"] + event["dur"],
            event["args"],
        )
        for (pid, tid), events in threads.items()
        for event in events
    ]


def check_nesting(events):
    open_until = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= begin + 2 * NANOSECOND:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 2 * NANOSECOND, event
        open_until.append(end)
