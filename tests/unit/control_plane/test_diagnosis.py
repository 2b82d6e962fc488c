"""Why a worker waits in vain."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.diagnosis import (
    HEARTBEAT_TIMEOUT_SECONDS,
    ServerView,
    Wait,
    diagnose,
    find_partition,
)
from stratagem._src.control_plane.worker_status import (
    AGREEING,
    FAILED,
    IDLE,
    LEAVING,
    WAITING,
    InputIteration,
    PeerView,
    WorkerStatus,
)

HEARD = ServerView()
NAMES = ["worker 0", "worker 1", "worker 2"]


def here(phase=WAITING, launched=5, at="step", agreed=0, awaits="", inputs=(), **view):
    status = WorkerStatus(phase, launched, at, None, "", agreed, awaits, inputs)
    return PeerView(absent=False, status=status, **view)


def ask(
    *peers,
    seconds=1.0,
    phase=WAITING,
    launched=5,
    agreed=0,
    awaits="",
    in_sequence=True,
    may_compute=False,
    server=HEARD,
):
    mine = WorkerStatus(phase, launched, "step", None, "", agreed, awaits)
    wait = Wait(mine, seconds, 60.0, in_sequence, may_compute)
    return diagnose(0, wait, [here(), *peers], NAMES, server)


def test_no_finding_while_all_are_on_their_way():
    assert ask(here(), here(IDLE, 4), seconds=59.0) is None


def test_one_that_is_gone():
    finding = ask(here(), here(gone=True))
    assert finding.culprit == 2
    assert "worker 2 is gone" in finding.text


def test_a_membership_server_that_is_silent():
    # What it last said of the others is as old: neither late nor at another step.
    server = ServerView(worker=1, heartbeat_age=HEARTBEAT_TIMEOUT_SECONDS)
    for peers in ([here(), here(IDLE, 4)], [here(), here(AGREEING, 4)]):
        finding = ask(*peers, seconds=100.0, server=server)
        assert finding.culprit == 1
        assert finding.is_lost
        assert "worker 1 has sent no heartbeat for 8 s" in finding.text
        assert "alive" not in finding.text


def test_who_gave_up_before_the_membership_server_fell_silent_says_more():
    gave_up = PeerView(absent=False, status=WorkerStatus(FAILED, 5, "step", 2, "worker 2 is gone"))
    finding = ask(gave_up, here(), server=ServerView(heartbeat_age=60.0))
    assert finding.culprit == 2


def test_a_membership_server_that_is_gone():
    server = ServerView(worker=2, gone=True)
    finding = ask(here(), here(IDLE, 4), seconds=100.0, server=server)
    assert finding.culprit == 2
    assert "worker 2 is gone" in finding.text


def test_a_membership_server_that_was_heard_lately():
    assert (
        ask(here(), here(IDLE, 4), server=ServerView(heartbeat_age=HEARTBEAT_TIMEOUT_SECONDS - 1))
        is None
    )


def test_one_that_left():
    finding = ask(here(left="its program failed with KeyError('x')"), here())
    assert finding.culprit == 1
    assert "KeyError" in finding.text


def test_one_that_left_and_has_ended_is_not_said_to_have_crashed():
    finding = ask(here(left="its program ended with exit code 7", gone=True), here())
    assert finding.text == "worker 1 has left: its program ended with exit code 7"


@pytest.mark.parametrize(
    ("silent", "found"),
    [(HEARTBEAT_TIMEOUT_SECONDS - 1, False), (HEARTBEAT_TIMEOUT_SECONDS + 1, True)],
)
def test_one_that_is_not_heard_of(silent, found):
    assert (ask(here(), here(heartbeat_age=silent)) is not None) == found


def test_the_cause_is_taken_over_from_one_that_gave_up():
    status = WorkerStatus(FAILED, 5, "step", culprit=2, reason="worker 2 is gone")
    finding = ask(PeerView(absent=False, status=status, gone=True), here())
    assert finding.culprit == 2
    assert finding.text == "worker 1 gave up: worker 2 is gone"


def test_one_that_gave_up_on_me_says_why():
    status = WorkerStatus(FAILED, 5, "step", culprit=0, reason="worker 0 is slow")
    finding = ask(PeerView(absent=False, status=status, left="its program ended"), here())
    assert finding.text == "worker 1 gave up on worker 0: worker 0 is slow"


@pytest.mark.parametrize(
    ("phase", "launched", "found"),
    [(WAITING, 4, True), (WAITING, 5, False), (AGREEING, 5, True), (LEAVING, 5, False)],
)
def test_one_at_the_end_of_its_program(phase, launched, found):
    mine = 5 if phase != AGREEING else 4
    finding = ask(here(LEAVING, launched), here(), phase=phase, launched=mine)
    assert (finding is not None) == found


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ((WAITING, 6), (AGREEING, 5), True),
        ((AGREEING, 5), (WAITING, 6), True),
        ((WAITING, 6), (AGREEING, 6), False),
        ((WAITING, 6), (WAITING, 6), False),
    ],
)
def test_workers_at_different_programs(mine, theirs, found):
    phase, launched = mine
    finding = ask(here(*theirs, "evaluate"), here(), seconds=3.0, phase=phase, launched=launched)
    assert (finding is not None) == found
    if found:
        assert finding.culprit is None
        assert "worker 1 is at evaluate, and worker 0 at step" in finding.text


@pytest.mark.parametrize(
    ("agreed", "awaits", "found"),
    [
        (7, "variables/2", True),
        (7, "programs/4", False),
        (6, "variables/2", False),  # old news: we have completed that since
        (8, "variables/2", False),  # it has seen the end of ours, which we are about to
    ],
)
def test_workers_in_different_exchanges(agreed, awaits, found):
    peer = here(AGREEING, 5, "creation of variable 'v'", agreed, awaits)
    finding = ask(peer, here(), seconds=3.0, phase=AGREEING, agreed=7, awaits="programs/4")
    assert (finding is not None) == found
    if found:
        assert finding.culprit is None
        assert "worker 1 is at creation of variable 'v', and worker 0 at step" in finding.text


@pytest.mark.parametrize(
    ("mine", "agreed", "theirs"),
    [((WAITING, 6), 8, (AGREEING, 5)), ((AGREEING, 5), 6, (WAITING, 6))],
)
def test_one_that_is_cut_off_has_not_heard_what_all_have_agreed_on(mine, agreed, theirs):
    phase, launched = mine
    peer = here(*theirs, "step", agreed=7)
    assert ask(peer, here(), seconds=3.0, phase=phase, launched=launched, agreed=agreed) is None


def test_a_difference_may_be_the_age_of_the_news():
    assert ask(here(AGREEING, 5), here(), seconds=1.0, launched=6) is None


def test_input_does_not_belong_to_the_sequence():
    assert ask(here(AGREEING, 5), here(), seconds=3.0, launched=6, in_sequence=False) is None


def test_late_ones_are_named():
    finding = ask(here(IDLE, 4, "evaluate"), here(), seconds=61.0)
    assert finding.culprit == 1
    assert "worker 1 is alive but has not arrived" in finding.text
    assert "after evaluate" in finding.text
    assert "worker 2" not in finding.text


def test_nobody_is_late_for_a_program_that_all_have_launched():
    finding = ask(here(), here(), seconds=61.0)
    assert "did not end within 61 s, although worker 1, worker 2 reached it too" in finding.text


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (here(AGREEING, 5, "save", awaits="checkpoints/1"), "it is at save"),
        (here(WAITING, 6, "evaluate"), "it is at evaluate"),
        (
            here(IDLE, 5, "evaluate", inputs=("step 0 of dataset 1",)),
            "it is busy in its own code after evaluate, and its input waits for step 0 of dataset 1",
        ),
    ],
)
def test_one_that_waits_elsewhere_is_not_said_to_wait_here(peer, said):
    here_too = here(AGREEING, 5, inputs=("step",))
    finding = ask(peer, here_too, seconds=61.0, phase=AGREEING, launched=0, in_sequence=False)
    assert finding.culprit == 1
    assert finding.text == f"worker 1 is alive but has not arrived: {said} (waited 61 s)"


def test_one_that_has_gone_on_in_its_own_code_has_come():
    finding = ask(here(IDLE, 5), here(), seconds=61.0)
    assert "although worker 1, worker 2 reached it too" in finding.text


def test_a_program_that_all_have_launched_may_compute():
    assert ask(here(), here(WAITING, 7), seconds=1000.0, may_compute=True) is None
    assert ask(here(), here(WAITING, 4), seconds=61.0, may_compute=True).culprit == 2
    assert ask(here(), here(gone=True), may_compute=True).culprit == 2


@given(
    st.lists(
        st.builds(
            here,
            st.sampled_from([IDLE, AGREEING, WAITING, LEAVING, FAILED]),
            st.integers(0, 6),
            gone=st.booleans(),
            left=st.none() | st.just("bye"),
            heartbeat_age=st.floats(0, 100),
        ),
        min_size=2,
        max_size=2,
    ),
    st.sampled_from([AGREEING, WAITING]),
    st.floats(60.1, 1000),
)
def test_nobody_waits_longer_than_the_deadline(peers, phase, seconds):
    finding = ask(*peers, seconds=seconds, phase=phase)
    assert finding is not None
    assert finding.culprit in (None, 1, 2)


TRAIN, TEST = InputIteration("the training data", 0), InputIteration("the test data", 2)


@pytest.mark.parametrize(
    ("theirs", "they_begin", "begun", "is_found"),
    [
        (TEST, (TEST,), {"the training data": 0}, True),
        (TEST, (TEST,), {"the training data": 0, "the test data": 1}, True),
        (TRAIN, (TRAIN,), {"the training data": 0}, False),
        # What is known of it is old: the iteration began here too, and it has gone on since.
        (TEST, (TEST,), {"the training data": 0, "the test data": 2}, False),
        # Another thread of it is at the first step.
        (TEST, (TEST, TRAIN), {"the training data": 0}, False),
        # Its main thread waits in no iteration.
        (None, (TEST,), {"the training data": 0}, False),
    ],
)
def test_one_whose_main_thread_begins_another_iteration(theirs, they_begin, begun, is_found):
    status = WorkerStatus(IDLE, begins=they_begin, main_begins=theirs)
    mine = WorkerStatus(AGREEING, at=f"step 0 of {TRAIN}")
    views = [here(IDLE), PeerView(absent=False, status=status)]
    for seconds in (1.0, 2.5):
        wait = Wait(mine, seconds, 60.0, in_sequence=False, main_begins=TRAIN, begun=begun)
        finding = diagnose(0, wait, views, NAMES)
        assert (finding is not None) == (is_found and seconds > 2)
    if is_found:
        assert finding.culprit is None
        assert "worker 1 draws from iteration 2 over the test data" in finding.text
        assert "worker 0 from iteration 0 over the training data" in finding.text


@pytest.mark.parametrize(
    ("begun", "in_main_thread", "seconds", "is_found"),
    [
        ({}, True, 2.5, True),
        ({TEST.dataset: TEST.number - 1}, True, 2.5, True),
        # It may only be slow.
        ({}, True, 1.0, False),
        # This worker has begun the iteration, so the other one gets its first step.
        ({TEST.dataset: TEST.number}, True, 2.5, False),
        # The main thread of this worker can still begin it.
        ({}, False, 2.5, False),
    ],
)
def test_one_whose_main_thread_draws_while_this_one_creates(
    begun, in_main_thread, seconds, is_found
):
    mine = WorkerStatus(AGREEING, at="creation of variable 'v'", awaits="variables/1")
    status = WorkerStatus(IDLE, begins=(TEST,), main_begins=TEST)
    wait = Wait(mine, seconds, 60.0, begun=begun, in_main_thread=in_main_thread)
    finding = diagnose(0, wait, [here(IDLE), PeerView(absent=False, status=status)], NAMES)
    assert (finding is not None) == is_found
    if is_found:
        assert finding.culprit is None
        assert "worker 1 draws from iteration 2 over the test data" in finding.text
        assert "worker 0 is at creation of variable 'v'" in finding.text


def test_a_status_tells_of_iterations_that_begin():
    status = WorkerStatus(IDLE, begins=(TRAIN, TEST), main_begins=TEST)
    assert WorkerStatus.from_json(json.loads(json.dumps(status.to_json()))) == status
    broken = {**status.to_json(), "begins": [["the data", "first"]]}
    with pytest.raises(RendezvousError, match="same version"):
        WorkerStatus.from_json(broken)


def test_two_that_are_alive_and_cannot_reach_each_other_are_both_named():
    finding = find_partition(0, {1: 0.0, 2: HEARTBEAT_TIMEOUT_SECONDS + 3}, NAMES)
    assert finding.culprit == 2
    assert finding.is_lost
    assert "worker 0 and worker 2 cannot reach each other" in finding.text
    # Of one that is silent altogether the heartbeats tell first.
    assert find_partition(0, {1: 0.0, 2: HEARTBEAT_TIMEOUT_SECONDS}, NAMES) is None
