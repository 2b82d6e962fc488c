"""What is shown of a job, from its events."""

import pytest

from stratagem._src.telemetry.monitoring.job_history import JobHistory


def sample(task, time, **changes):
    return {
        "time": time,
        "event": "sample",
        "task": task,
        "process": 1,
        "steps": 10,
        "examples": 320,
        "steps_per_second": 5.0,
        "examples_per_second": 160.0,
        "step": {"total": 0.2},
        "reported": {},
        "memory": 2**20,
        "figures": {},
        "straggler": None,
        **changes,
    }


@pytest.fixture
def history():
    history = JobHistory()
    history.add({"time": 1.0, "event": "job_started", "name": "train"})
    tasks = ["worker 0", "worker 1"]
    history.add({"time": 2.0, "event": "attempt_started", "attempt": 0, "tasks": tasks})
    return history


def states(history, now=10.0):
    return {task["task"]: task["state"] for task in history.view(now)["tasks"]}


def ended(task, time, exit_code, *, failed):
    text = f"{task} ended"
    kinds = {"exit_code": exit_code, "failed": failed, "text": text}
    return {"time": time, "event": "task_ended", "task": task, **kinds}


def test_a_task_runs_when_it_is_heard_of_and_is_silent_when_it_is_not(history):
    history.add(sample("worker 0", 9.0))
    assert states(history) == {"worker 0": "running", "worker 1": "starting"}
    assert states(history, now=20.0) == {"worker 0": "silent", "worker 1": "starting"}


def test_what_a_task_does_instead_of_steps_is_its_state(history):
    for activity in ("compiling", "recovering"):
        history.add(sample("worker 0", 9.0, activity=activity, cpu=1.5))
        assert states(history)["worker 0"] == activity
        assert history.view(10.0)["examples_per_second"] == 160.0  # it still counts as running
    assert states(history, now=20.0)["worker 0"] == "silent"
    history.add(sample("worker 0", 21.0, activity=""))
    assert states(history, now=21.0)["worker 0"] == "running"
    assert history.view(21.0)["tasks"][0]["points"][0]["cpu"] == 1.5


def test_ends_restarts_and_failures(history):
    history.add(sample("worker 0", 9.0))
    history.add(ended("worker 0", 9.5, 137, failed=True))
    history.add(sample("worker 0", 9.6))  # sent before its end, and late
    assert states(history)["worker 0"] == "failed"
    again = {"time": 9.7, "event": "task_started", "task": "worker 0", "reason": "it was killed"}
    history.add(again)
    [first, _] = history.view(10.0)["tasks"]
    assert (first["state"], first["starts"], first["steps"]) == ("starting", 2, 10)
    history.add(ended("worker 0", 9.8, 143, failed=False))
    assert states(history)["worker 0"] == "ended"
    history.add(ended("worker 1", 9.9, 0, failed=False))
    assert states(history)["worker 1"] == "done"
    notes = history.view(10.0)["notes"]
    assert [(note["kind"], note["task"]) for note in notes] == [
        ("error", "worker 0"),
        ("recovery", "worker 0"),
    ]


def test_another_attempt_starts_all_again(history):
    tasks = ["worker 0", "worker 1"]
    history.add({"time": 5.0, "event": "attempt_started", "attempt": 1, "tasks": tasks})
    view = history.view(6.0)
    assert view["job"]["attempt"] == 1
    assert [task["starts"] for task in view["tasks"]] == [2, 2]


def test_rates_over_all_workers(history):
    history.add(sample("worker 0", 9.0))
    history.add(sample("worker 1", 9.0, steps_per_second=4.9, straggler="worker 1"))
    view = history.view(10.0)
    assert view["examples_per_second"] == 320.0
    assert view["steps_per_second"] == 5.0  # they make the same steps
    assert view["straggler"] == "worker 1"
    history.add(sample("chief 0", 9.0, steps_per_second=0.0, figures={"coordinator": {}}))
    assert history.view(10.0)["steps_per_second"] == pytest.approx(9.9)  # each its own


def test_figures_of_a_user_stay_until_there_are_newer_ones(history):
    history.add(sample("worker 0", 3.0, reported={"loss": 2.0}))
    history.add(sample("worker 0", 4.0))
    [first, _] = history.view(5.0)["tasks"]
    assert first["reported"] == {"loss": 2.0}


def test_only_the_newer_part_of_the_past_is_given_and_little_is_kept(history):
    for second in range(1000):
        history.add(sample("worker 0", float(second)))
        history.add({"time": float(second), "event": "note", "kind": "warning", "text": "x"})
    view = history.view(1000.0)
    assert len(view["tasks"][0]["points"]) == 600
    assert len(view["notes"]) == 100
    view = history.view(1000.0, since=997.0)
    assert [point["time"] for point in view["tasks"][0]["points"]] == [998.0, 999.0]
    assert len(view["notes"]) == 2


def test_the_end_of_the_job(history):
    history.add(
        {"time": 9.0, "event": "job_ended", "exit_code": 3, "text": "worker 1 failed\n more"}
    )
    view = history.view(10.0)
    assert (view["job"]["state"], view["job"]["exit_code"]) == ("failed", 3)
    assert view["notes"][-1]["text"] == "worker 1 failed"
