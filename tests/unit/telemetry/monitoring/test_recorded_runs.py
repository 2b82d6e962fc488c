"""Event logs of jobs that have ended, as ``stratagem view`` shows them."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from stratagem._src.cli import main
from stratagem._src.telemetry.monitoring.recorded_runs import RecordedRuns


def sample(time, steps, **reported):
    rates = {"steps_per_second": 2.0, "examples_per_second": 16.0, "straggler": None}
    counts = {"steps": steps, "examples": 8 * steps, "memory": 10**6, "figures": {}}
    event = {"time": time, "event": "sample", "task": "worker 0", "process": 7, "step": None}
    return event | rates | counts | {"reported": reported}


def run_of(start, losses, exit_code=0):
    yield {"time": start, "event": "job_started", "name": "train"}
    yield {"time": start, "event": "attempt_started", "attempt": 0, "tasks": ["worker 0"]}
    for second, loss in enumerate(losses, 1):
        yield sample(start + second, 2 * second, loss=loss)
    end = {"time": start + len(losses) + 1, "task": "worker 0", "exit_code": exit_code}
    yield {**end, "event": "task_ended", "failed": bool(exit_code), "text": "it failed"}
    yield {"time": end["time"], "event": "job_ended", "exit_code": exit_code, "text": ""}


def write(path, *runs):
    path.write_text("".join(f"{json.dumps(event)}\n" for run in runs for event in run))
    return path


def losses_of(task):
    return [(point["time"], point["steps"], point["reported"]["loss"]) for point in task["points"]]


def test_one_run_is_shown_as_it_ended(tmp_path):
    runs = RecordedRuns([write(tmp_path / "a.jsonl", run_of(1000.0, [0.5, 0.25]))])
    view = runs.view()
    assert view["job"]["state"] == "done"
    assert view["now"] - view["job"]["started"] == 3.0
    [task] = view["tasks"]
    assert (task["task"], task["state"], task["steps"]) == ("worker 0", "done", 4)
    assert losses_of(task) == [(1001.0, 2, 0.5), (1002.0, 4, 0.25)]
    assert runs.view(since=view["now"])["tasks"][0]["points"] == []


def test_several_runs_begin_together(tmp_path):
    first = write(tmp_path / "a.jsonl", run_of(1000.0, [0.5]))
    both = write(tmp_path / "b.jsonl", run_of(5000.0, [0.4, 0.3], exit_code=1), run_of(9000.0, []))
    view = RecordedRuns([first, both]).view()
    assert view["job"]["name"] == "a and b 1 and b 2"
    assert [task["task"] for task in view["tasks"]] == [
        *("a: worker 0", "b 1: worker 0", "b 2: worker 0")
    ]
    assert losses_of(view["tasks"][1]) == [(1.0, 2, 0.4), (2.0, 4, 0.3)]
    [note] = view["notes"]
    assert (note["time"], note["kind"], note["task"]) == (3.0, "error", "b 1: worker 0")
    assert view["now"] == 3.0


def test_long_runs_are_thinned_but_keep_their_end(tmp_path):
    path = write(tmp_path / "a.jsonl", run_of(0.0, [1 / n for n in range(1, 10_001)]))
    [task] = RecordedRuns([path]).view()["tasks"]
    assert 1000 < len(task["points"]) <= 2000
    assert task["points"][-1]["steps"] == 20_000


def test_a_line_that_a_killed_launcher_left_unfinished_is_ignored(tmp_path):
    path = write(tmp_path / "a.jsonl", list(run_of(0.0, [0.5]))[:-2])
    path.write_text(path.read_text() + '{"time": 7.0, "ev')
    view = RecordedRuns([path]).view()
    assert (view["job"]["state"], view["now"]) == ("ended", 1.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no events"),
        ("loss,step\n", "line 1 is not an event"),
        ('{"time": 1, "event": "view"}\n', "line 1 is not an event"),
        ('{"time": 1, "event": "job_started", "name": "a"}\n[]\n', "line 2 is not an event"),
        (None, "No such file"),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, text, problem):
    path = tmp_path / "a.jsonl"
    if text is not None:
        path.write_text(text)
    assert main(["view", str(path)]) == 2
    assert problem in capsys.readouterr().err


def test_as_text(tmp_path, capsys):
    assert main(["view", "--text", str(write(tmp_path / "a.jsonl", run_of(0.0, [0.5, 0.25])))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("train  done  0:00:03")
    assert "worker 0: loss 0.25" in lines
    paths = [str(tmp_path / "a.jsonl"), str(write(tmp_path / "b.jsonl", run_of(0.0, [0.5])))]
    assert main(["view", "--text", *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a and b  ended  0:00:03")
    assert "b: worker 0: loss 0.5" in lines


def test_the_page_is_served_until_an_interrupt(tmp_path):
    path = write(tmp_path / "a.jsonl", run_of(1000.0, [0.5]))
    command = [sys.executable, "-m", "stratagem", "view", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        link = re.search(r"http://\S+", process.stdout.readline())[0]
        with urllib.request.urlopen(f"{link}state?since=0", timeout=30) as answer:
            view = json.load(answer)
        assert view["is_recorded"]
        assert losses_of(view["tasks"][0]) == [(1001.0, 2, 0.5)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
