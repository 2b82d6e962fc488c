"""Workers that are killed, stopped, stuck or absent: nobody hangs, nobody aborts, and the one is named.

The workers are processes on their own, without a launcher that would end them.
"""

import random
import signal

import psutil
import pytest
from processes import poll


def moment():
    return random.uniform(0.0, 0.5)


@pytest.mark.parametrize("victim", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_killed_worker_is_named_by_all_others(workers, victim):
    some = workers(3, "kill", victim, moment(), 30)
    for index in {0, 1, 2} - {victim}:
        code, outcome = some.outcome(index)
        assert code == 0
        assert outcome["error"] == "UnavailableError"
        assert f"{some.name(victim)} is gone" in outcome["text"]
        assert f"{some.name(index)} waited in train.<locals>.step" in outcome["text"]
        # As it was before the call: every step adds 1 in each of the three replicas.
        assert outcome["variable"][0] % 3 == 0
        assert outcome["variable"][0] > 0


@pytest.mark.slow
def test_a_killed_worker_of_several_devices_is_named(workers):
    some = workers(2, "kill", 1, moment(), 30, num_devices=2)
    code, outcome = some.outcome(0)
    assert code == 0
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(1)} is gone" in outcome["text"]
    assert outcome["variable"][0] % 4 == 0
    assert outcome["variable"][0] > 0


def check_woken(some, victim):
    """Lets a stopped worker go on when the others have given up: it ends, and knows why."""
    for index in range(len(some.processes)):
        if index != victim:
            code, outcome = some.outcome(index)
            assert code == 0
            assert f"{some.name(victim)} has sent no heartbeat" in outcome["text"]
    some.processes[victim].send_signal(signal.SIGCONT)
    code, outcome = some.outcome(victim)
    assert code == 0
    assert outcome["error"] == "UnavailableError"
    assert f"gave up on {some.name(victim)}" in outcome["text"]
    assert outcome["variable"][0] > 0


def test_a_stopped_worker_is_named_and_ends_when_it_wakes_up(workers):
    some = workers(2, "stop", 0, moment(), 30)
    check_woken(some, 0)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("repetition", range(10))
def test_each_worker_that_wakes_up_ends(workers, number, repetition):
    victim = repetition % number
    check_woken(workers(number, "stop", victim, moment(), 30), victim)


@pytest.mark.slow
def test_a_worker_that_wakes_up_when_the_meeting_point_has_gone_ends(workers):
    some = workers(2, "stop", 1, moment(), 30)
    meeting = poll(lambda: psutil.Process(some.processes[0].pid).children(), 60)[0]
    some.processes[0].wait(60)
    meeting.kill()
    check_woken(some, 1)


@pytest.mark.slow
def test_a_worker_that_wakes_up_when_it_has_been_forgotten_ends(workers):
    some = workers(2, "stop", 1, moment(), 30)
    meeting = poll(lambda: psutil.Process(some.processes[0].pid).children(), 60)[0]
    psutil.wait_procs([meeting], timeout=100)
    check_woken(some, 1)


def check_killed_at_start(some, victim):
    for index in range(len(some.processes)):
        if index != victim:
            code, outcome = some.outcome(index)
            assert code == 0, outcome
            assert outcome["error"] == "UnavailableError"
            assert some.name(victim) in outcome["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "victim"),
    [
        pytest.param("hosting", 0, marks=pytest.mark.slow),
        ("roll call", 1),
        pytest.param("clients", 1, marks=pytest.mark.slow),
        pytest.param("devices", 0, marks=pytest.mark.slow),
        ("first program", 1),
    ],
)
def test_a_worker_that_is_killed_at_the_start_is_named(workers, when, victim):
    some = workers(2, when, victim, 0, 3 if when == "hosting" else 30)
    check_killed_at_start(some, victim)


@pytest.mark.slow
@pytest.mark.parametrize("repetition", range(2))
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("when", ["roll call", "clients", "devices", "first program"])
def test_a_worker_that_is_killed_while_it_starts_is_named(workers, when, victim, repetition):
    some = workers(3, when, victim, 0.4 * random.random() ** 3, 15)
    check_killed_at_start(some, victim)


def test_a_stuck_worker_is_named_at_the_deadline(workers):
    some = workers(2, "stuck", 1, moment(), 8)
    code, outcome = some.outcome(0)
    assert code == 0
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(1)} is alive but has not arrived" in outcome["text"]


def test_a_worker_that_never_starts_is_named(workers):
    some = workers(2, "absent", 1, 0, 8)
    _, outcome = some.outcome(0)
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(1)} did not start within 8 s" in outcome["text"]


@pytest.mark.slow
def test_a_leader_that_never_starts_is_named(workers):
    some = workers(2, "absent", 0, 0, 3)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "UnavailableError"
    assert f"the leader {some.name(0)}" in outcome["text"]


@pytest.mark.slow
def test_leaving_early_ends_the_others(workers):
    some = workers(2, "leave", 0, moment(), 30)
    code, outcome = some.outcome(0)
    assert (code, outcome["error"]) == (0, None)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(0)} has" in outcome["text"]


def test_ctrl_c_ends_a_worker_at_once_and_then_the_others(workers):
    some = workers(2, "interrupt", 1, moment(), 30)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "KeyboardInterrupt"
    _, outcome = some.outcome(0)
    assert outcome["error"] == "UnavailableError"
    assert some.name(1) in outcome["text"]


@pytest.mark.slow
def test_sigterm_ends_a_worker(workers):
    some = workers(2, "terminate", 0, moment(), 30)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(0)} is gone" in outcome["text"]
    some.processes[0].communicate(timeout=30)
    assert some.processes[0].returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("fault", "done"), [("shape", "step(int32[6])"), ("order", "all-reduce SUM of float32[6]")]
)
def test_workers_that_run_different_programs_are_told_who_did_what(workers, fault, done):
    some = workers(2, fault, 1, moment(), 30)
    for index in (0, 1):
        code, outcome = some.outcome(index)
        assert code == 0
        assert outcome["error"] == "ReplicaMismatchError"
        assert f"{some.name(1)} is at" in outcome["text"] or f"{some.name(1)} at" in outcome["text"]
        assert done in outcome["text"]
        assert "step(float32[6])" in outcome["text"]


@pytest.mark.slow
def test_workers_in_different_exchanges_are_told_who_did_what(workers):
    some = workers(2, "create", 1, 0, 60)
    for index in (0, 1):
        code, outcome = some.outcome(index)
        assert code == 0
        assert outcome["error"] == "ReplicaMismatchError"
        assert "creation of variable 'extra'" in outcome["text"]
        assert "step(int32[6])" in outcome["text"]


@pytest.mark.slow
def test_workers_that_draw_from_different_iterators_are_told_who_drew_from_which(workers):
    some = workers(2, "draw", 1, 0, 60)
    for index in (0, 1):
        code, outcome = some.outcome(index)
        assert code == 0
        assert outcome["error"] == "ReplicaMismatchError"
        assert "dataset number 0" in outcome["text"]
        assert "dataset number 1" in outcome["text"]
        assert "Every worker must draw from the same iterators" in outcome["text"]


@pytest.mark.slow
def test_a_wait_that_cannot_be_left_ends_the_process_with_the_name_of_the_lost_worker(workers):
    some = workers(2, "stop", 1, moment(), 60, "gpu")
    process = some.processes[0]
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "started" in printed
    assert "{" not in printed  # Python never had its turn
    assert f"{some.name(0)} waited in train.<locals>.step(float32[6])" in errors
    assert f"{some.name(1)} has sent no heartbeat" in errors
    assert "cannot be interrupted, so this process exits" in errors


@pytest.mark.slow
def test_python_sees_a_lost_worker_at_its_next_call_where_programs_are_not_waited_for(workers):
    some = workers(2, "meet a dead worker", 1, 0, 60, "gpu")
    code, outcome = some.outcome(0)
    assert code == 0
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(1)} is gone" in outcome["text"]


@pytest.mark.slow
def test_a_connection_that_breaks_is_explained_where_programs_are_not_waited_for(workers):
    some = workers(2, "kill", 1, moment(), 60, "gpu")
    code, outcome = some.outcome(0)
    assert code == 0
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(1)} is gone" in outcome["text"]


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_where_programs_are_not_waited_for_workers_agree_before_they_compile(workers, platform):
    some = workers(2, "shape", 1, 0, 60, platform)
    outcomes = [some.outcome(index)[1] for index in (0, 1)]
    for outcome in outcomes:
        assert outcome["error"] == "ReplicaMismatchError"
    # On GPU a compiler that measures kernels together with others would wait for them without a limit.
    assert bool(outcomes[1]["compiled"]) == (platform == "cpu")
