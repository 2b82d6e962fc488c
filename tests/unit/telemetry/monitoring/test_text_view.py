"""A job in the terminal."""

import io
import sys

import pytest

from stratagem._src.cli import main, top
from stratagem._src.cluster.address import Address
from stratagem._src.telemetry.monitoring.dashboard.dashboard_server import DashboardServer
from stratagem._src.telemetry.monitoring.job_history import JobHistory
from stratagem._src.telemetry.monitoring.text_view import text_view

STEP = {
    "input": 0.001,
    "compute": 0.004,
    "communication": 0,
    "waiting": 0.005,
    "other": 0,
    "total": 0.01,
}


@pytest.fixture
def history():
    history = JobHistory()
    tasks = ["chief 0", "worker 0", "ps 0"]
    for event in (
        {"time": 1.0, "event": "job_started", "name": "train"},
        {"time": 1.0, "event": "attempt_started", "attempt": 1, "tasks": tasks},
        {
            "time": 9.0,
            "event": "sample",
            "task": "worker 0",
            "process": 1,
            "steps": 1200,
            "examples": 38400,
            "steps_per_second": 99.5,
            "examples_per_second": 3184.0,
            "step": STEP,
            "reported": {"loss": float("nan")},
            "memory": 250_000_000,
            "cpu": 1.35,
            "figures": {
                "coordinator": {"queued": 3, "latency_seconds": 0.25},
                "device_memory": {"bytes": 2_000_000, "peak_bytes": 3_000_000},
                "devices": {"utilization": 0.874},
            },
            "straggler": "worker 0",
        },
        {"time": 9.5, "event": "note", "task": "worker 0", "kind": "warning", "text": "odd\nmore"},
    ):
        history.add(event)
    return history


def test_all_that_is_known(history):
    lines = text_view(history.view(10.0)).splitlines()
    assert lines[0].startswith("train  running, restart 1  0:00:09  99.5 steps/s  3184 examples/s")
    assert lines[0].endswith("straggler: worker 0")
    [row] = [line for line in lines if line.startswith("worker 0 ")]
    assert " ".join(row.split()) == (
        "worker 0 running 1200 99.5 3184 10.0 ms 10 % 40 % 0 % 50 % 0 % 135 % 250 MB 1"
    )
    assert "coordinator, worker 0: queued 3, latency 250.0 ms" in lines
    assert "device memory, worker 0: bytes 2 MB, peak 3 MB" in lines
    assert "devices, worker 0: utilization 87 %" in lines
    assert "worker 0: loss nan" in lines
    assert lines[-1].endswith("warning  worker 0: odd")


def test_names_and_texts_do_not_command_the_terminal():
    order = "\x1b]0;owned\x07\x1b[2J\x9b2J\n"
    history = JobHistory()
    sample = {
        "time": 1.0,
        "event": "sample",
        "task": order,
        "process": 1,
        "steps": 1,
        "examples": 1,
        "steps_per_second": 1.0,
        "examples_per_second": 1.0,
        "step": STEP,
        "memory": 1,
        "reported": {order: 1.0},
        "figures": {order: {order: 1}},
        "straggler": order,
    }
    for event in (
        {"time": 1.0, "event": "job_started", "name": order},
        {"time": 1.0, "event": "attempt_started", "attempt": 0, "tasks": [order]},
        sample,
        {"time": 1.0, "event": "note", "task": order, "kind": "warning", "text": f"x {order}"},
    ):
        history.add(event)
    text = text_view(history.view(2.0), 1000)
    assert not set(text) & set("\x1b\x07\x9b")
    assert text.count(r"\x1b]0;owned\x07\x1b[2J\x9b2J") >= 7
    assert len(text.splitlines()) == 10


def test_lines_fit_the_terminal(history):
    assert {len(line) <= 40 for line in text_view(history.view(10.0), 40).splitlines()} == {True}


@pytest.fixture
def server(history):
    views = [history.view(10.0), history.view(10.0)]
    with DashboardServer(Address("127.0.0.1", 0), lambda since: views[0], "key") as server:
        yield server


def test_where_the_output_is_no_terminal_it_is_shown_once(server, capsys):
    assert main(["top", server.link]) == 0
    assert capsys.readouterr().out.startswith("train  running")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_is_kept_up_to_date_until_the_job_ends(history, monkeypatch):
    monkeypatch.setattr(top, "_POLL_INTERVAL", 0.0)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    looks = iter(range(3))

    def view(since):
        if next(looks, None) is None:
            raise ConnectionError  # the launcher is gone
        return history.view(10.0)

    with DashboardServer(Address("127.0.0.1", 0), view, "key") as server:
        assert main(["top", server.link]) == 0
    shown = terminal.getvalue()
    assert shown.startswith("\x1b[?1049h")
    assert shown.count("\x1b[H") == 3
    assert "\x1b[?1049l" in shown
    assert shown.endswith("odd\n")


def test_without_a_job_it_says_how_to_get_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["top"]) == 2
    assert "--dashboard" in capsys.readouterr().err
