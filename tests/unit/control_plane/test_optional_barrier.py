"""Whether a worker comes to an optional place, from what it says of itself. No sockets."""

import pytest

from stratagem._src.control_plane.optional_barrier import Position, is_elsewhere
from stratagem._src.control_plane.worker_status import (
    AGREEING,
    IDLE,
    LEAVING,
    WAITING,
    InputIteration,
    WorkerStatus,
)

KEY = "a save after 3/5"
INPUT = InputIteration("a dataset", 2)


@pytest.mark.parametrize(
    ("status", "elsewhere"),
    [
        (WorkerStatus(IDLE, 3, agreed=5), False),  # it may come
        (WorkerStatus(IDLE, 3, agreed=5, meets=KEY), False),  # it is here
        (WorkerStatus(WAITING, 3, agreed=5), False),  # still in the program before
        (WorkerStatus(AGREEING, 3, agreed=4), False),  # still in the exchange before
        (WorkerStatus(WAITING, 2, agreed=5), False),
        (WorkerStatus(WAITING, 4, agreed=5), True),
        (WorkerStatus(AGREEING, 3, agreed=5), True),  # it waits for this worker
        (WorkerStatus(IDLE, 3, agreed=6), True),
        (WorkerStatus(LEAVING, 3, agreed=5), True),
        (WorkerStatus(IDLE, 3, agreed=5, main_begins=INPUT), True),
    ],
)
def test_who_comes_and_who_does_not(status, elsewhere):
    for me, other in ((0, 1), (1, 0)):
        assert is_elsewhere(me, other, KEY, Position(3, 5), status, {}) is elsewhere


def test_an_iteration_that_both_have_begun_ends_the_wait_in_it():
    status = WorkerStatus(IDLE, 3, agreed=5, main_begins=INPUT)
    assert not is_elsewhere(0, 1, KEY, Position(3, 5), status, {"a dataset": 2})


def test_of_workers_at_two_optional_places_the_first_goes_on():
    status = WorkerStatus(IDLE, 3, agreed=5, meets="another save after 3/5")
    assert is_elsewhere(0, 1, KEY, Position(3, 5), status, {})
    assert not is_elsewhere(1, 0, KEY, Position(3, 5), status, {})


def test_a_status_with_all_of_it_is_read_as_it_was_written():
    status = WorkerStatus(IDLE, 3, agreed=5, meets=KEY, heard=((0, 4), (2, 1)))
    again = WorkerStatus.from_json(
        {**status.to_json(), "heard": [list(pair) for pair in status.heard]}
    )
    assert again == status
    assert [again.heard_of(worker) for worker in range(3)] == [4, 0, 1]
