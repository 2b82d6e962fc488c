"""How long a job needs to train again, from its events."""

import pytest

from stratagem._src.telemetry.monitoring.recovery_times import RecoveryTimes


def ended(task, time, *, failed=True):
    return {"event": "task_ended", "time": time, "task": task, "failed": failed, "exit_code": 1}


def started(task, time):
    return {"event": "task_started", "time": time, "task": task, "reason": "it was killed"}


def attempt(number, time):
    tasks = ["worker 0", "worker 1"]
    return {"event": "attempt_started", "time": time, "attempt": number, "tasks": tasks}


def sample(task, time, process, steps=1, **figures):
    fields = {"process": process, "steps": steps, "figures": figures}
    return {"event": "sample", "time": time, "task": task, **fields}


def texts(*events):
    times = RecoveryTimes()
    return [note["text"] for event in events for note in times.notes_after(event)]


def test_a_task_that_was_started_again_has_recovered_with_its_first_step():
    assert texts(
        attempt(0, 0.0),
        sample("worker 1", 5.0, 11),
        ended("worker 1", 10.0),
        started("worker 1", 10.1),
        sample("worker 1", 10.2, 11),  # of the process that was killed
        sample("worker 1", 11.0, 12, steps=0),  # imports, compiles
        sample("worker 0", 11.5, 10),
        sample("worker 1", 12.5, 12),
        sample("worker 1", 13.5, 12, steps=2),
    ) == ["worker 1 trains again, 2.5 s after it failed"]


def test_a_second_failure_counts_for_itself():
    found = texts(
        *(ended("worker 1", 10.0), started("worker 1", 10.0), sample("worker 1", 12.0, 12)),
        *(ended("worker 1", 20.0), started("worker 1", 20.0), sample("worker 1", 21.0, 13)),
    )
    assert [text.partition(", ")[2] for text in found] == [
        "2.0 s after it failed",
        "1.0 s after it failed",
    ]


def test_a_parameter_server_makes_no_steps():
    server = sample("ps 0", 4.0, 7, steps=0, parameter_server={"variables": 1})
    assert texts(ended("ps 0", 1.0), started("ps 0", 1.0), server) == [
        "ps 0 runs again, 3.0 s after it failed"
    ]


def test_a_job_that_was_restarted_has_recovered_with_the_first_step_of_any_task():
    assert texts(
        attempt(0, 0.0),
        ended("worker 1", 10.0),
        ended("worker 0", 10.5, failed=False),  # the launcher has stopped it
        attempt(1, 11.0),
        sample("worker 0", 14.0, 20),
        sample("worker 1", 14.5, 21),
    ) == ["the job trains again, 4.0 s after worker 1 failed"]


@pytest.mark.parametrize("failed", [True, False])
def test_without_a_restart_there_is_nothing_to_tell(failed):
    assert (
        texts(attempt(0, 0.0), sample("worker 0", 1.0, 1), ended("worker 0", 2.0, failed=failed))
        == []
    )
