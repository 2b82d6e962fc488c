"""Waiting for processes, and finding those of a test."""

import time

import psutil

MARK = "LAUNCH_TEST_MARK"


def poll(condition, seconds=30.0):
    """Waits until a condition is true and returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.01)
    return value


def marked(mark):
    """Returns the processes that have the mark in their environment, but are not dead."""
    found = []
    for process in psutil.process_iter():
        try:
            is_marked = process.environ().get(MARK) == mark
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
