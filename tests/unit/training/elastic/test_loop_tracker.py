"""Programs come again to the place inside their loops where they were."""

import contextlib
import copy

import pytest

from stratagem._src.core.errors import ContextError
from stratagem._src.training.elastic.loop_tracker import LoopTracker


class Interrupted(BaseException):
    pass


def loop(places, number, reach):
    """A loop of so many turns, as the real ones are written."""
    opened = places.open()
    if opened.is_done:
        return
    current = opened.position or 0
    while current < number:
        yield current
        current += 1
        places.advance(opened.depth, current)
        reach()
    places.close(opened.depth)


def program(places, done, reach):
    """Two epochs of training and evaluation, and something after them."""
    for epoch in loop(places, 2, reach):
        for step in loop(places, 3, reach):
            done.append(("train", epoch, step))
        for step in loop(places, 2, reach):
            done.append(("evaluate", epoch, step))
    for step in loop(places, 2, reach):
        done.append(("export", step))


def run(place, stop_at=None):
    """Returns what is done from a place on, and where the program was when it was stopped."""
    places, done, reached = LoopTracker(place), [], [copy.deepcopy(place)]

    def reach():
        reached.append(places.place)
        if len(reached) - 1 == stop_at:
            raise Interrupted

    with contextlib.suppress(Interrupted):
        program(places, done, reach)
    return done, reached[-1], len(reached) - 1


def test_stopped_at_each_boundary_everything_is_done_once():
    whole, _, boundaries = run([])
    assert len(whole) == 12
    assert boundaries == 14
    for stop_at in range(1, boundaries + 1):
        first, place, _ = run([], stop_at)
        second, _, _ = run(place)
        assert first + second == whole, stop_at


def test_stopped_at_each_boundary_again_and_again():
    whole, _, _ = run([])
    done, place = [], []
    while len(done) < len(whole):
        some, place, _ = run(place, stop_at=1)
        done += some
    assert done == whole


def test_a_program_that_does_not_come_to_its_loop_again_is_refused():
    places = LoopTracker([[0, 1], [0, 1]])
    outer = places.open()
    with pytest.raises(ContextError, match="did not reach it again"):
        places.advance(outer.depth, 2)


def test_a_loop_that_the_one_around_it_has_left_cannot_go_on():
    places = LoopTracker()
    outer, inner = places.open(), places.open()
    places.advance(outer.depth, 1)
    with pytest.raises(ContextError, match="without zip"):
        places.advance(inner.depth, 1)
