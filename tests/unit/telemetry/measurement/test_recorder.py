"""What a recorder takes in, and what becomes of it."""

import logging
import threading

import pytest

from stratagem._src.telemetry.measurement.recorder import Recorder
from stratagem._src.telemetry.monitoring.reporter import WarningHandler


@pytest.fixture
def recorder(request):
    if "clock" in request.fixturenames:
        request.getfixturevalue("clock")
    return Recorder()


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self):
        self.now = 100.0
        self.readings = 0

    def perf_counter(self):
        self.readings += 1
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("stratagem._src.telemetry.measurement.recorder.time", clock)
    return clock


def test_steps_take_time_and_are_counted(recorder):
    step = recorder.as_step(lambda x: x * 2)
    assert [step(x) for x in range(3)] == [0, 2, 4]
    interval = recorder.take()
    assert interval.steps == 3
    assert 0 < interval.program_seconds <= interval.seconds
    assert recorder.take().steps == 0


def test_a_step_within_a_step_is_none(recorder):
    inner = recorder.as_step(lambda: None)
    recorder.as_step(inner)()
    assert recorder.take().steps == 1
    inner()
    assert recorder.take().steps == 1


def test_a_step_that_fails_is_none(recorder):
    def fail():
        raise ValueError("no")

    step = recorder.as_step(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            step()
    recorder.as_step(lambda: None)()
    assert recorder.take().steps == 1


def test_the_time_between_steps_counts_from_look_to_look(recorder):
    step = recorder.as_step(lambda: None)
    step()
    recorder.take()
    step()
    between = recorder.take()
    assert between.steps == 1
    assert between.seconds > between.program_seconds


def test_draws_count_examples_and_those_within_draws_do_not(recorder):
    def draw():
        return recorder.draw(lambda: [1, 2], len)

    assert recorder.draw(draw, len) == [1, 2]
    assert draw() == [1, 2]
    interval = recorder.take()
    assert interval.examples == 4
    assert interval.input_seconds > 0


def test_a_draw_at_the_end_of_data_counts_nothing(recorder):
    with pytest.raises(StopIteration):
        recorder.draw(lambda: next(iter(())), len)
    assert recorder.draw(lambda: [1], len) == [1]
    assert recorder.take().examples == 1


def test_programs_of_all_workers_keep_their_numbers(recorder):
    assert recorder.run_multi_process(7, "step", lambda: "done") == "done"
    [(number, seconds)] = recorder.take().joint
    assert number == 7
    assert seconds >= 0


def test_communication_is_added_up_also_when_it_fails(recorder):
    def fail():
        raise OSError

    with pytest.raises(OSError):
        recorder.communicate(fail)
    assert recorder.take().communication_seconds > 0


def test_nothing_is_lost_between_threads(recorder):
    step = recorder.as_step(lambda: None)
    barrier = threading.Barrier(5)
    taken = []

    def work():
        barrier.wait()
        for _ in range(2000):
            step()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait()
    while any(thread.is_alive() for thread in threads):
        taken.append(recorder.take().steps)
    assert sum(taken) + recorder.take().steps == 8000


def test_what_a_thread_measured_counts_once_after_its_end(recorder):
    step = recorder.as_step(lambda: None)
    for _ in range(2):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert recorder.take().steps == 2
    assert recorder.take().steps == 0
    step()
    assert recorder.take().steps == 1


def test_of_very_many_steps_some_are_timed_and_all_are_counted(recorder, clock):
    step = recorder.as_step(lambda: clock.sleep(1e-5))
    for _ in range(3):
        start = clock.now
        for _ in range(7 * 1000):
            step()
        interval = recorder.take()
        assert interval.steps == 7000
        assert interval.program_seconds == pytest.approx(0.07)
        assert interval.seconds == pytest.approx(clock.now - start, rel=1e-3)
    assert clock.readings < 7000 * 2 * 1.5  # of the first round all are timed, then one in seven


def test_steps_that_become_long_are_timed_again(recorder, clock):
    durations = [1e-5]
    step = recorder.as_step(lambda: clock.sleep(durations[0]))
    for _ in range(10_000):
        step()
    recorder.take()
    step()
    durations[0] = 10.0
    step()  # not timed: nobody could know
    untimed = recorder.take()
    assert untimed.steps == 2
    assert untimed.seconds == pytest.approx(10.0, rel=1e-3)
    step()
    step()
    timed = recorder.take()
    assert timed.steps == 2
    assert timed.program_seconds == pytest.approx(20.0)


def test_the_newest_figure_of_each_name_is_kept(recorder):
    recorder.report({"loss": 2.0, "accuracy": 0.5})
    recorder.report({"loss": 1.0})
    assert recorder.take_reported() == {"loss": 1.0, "accuracy": 0.5}
    assert recorder.take_reported() == {}


def test_sources_are_asked_for_as_long_as_they_live(recorder):
    class Source:
        def figures(self):
            return {"queued": 3}

    source = Source()
    recorder.add_source("coordinator", source.figures)
    assert dict(recorder.metrics()) == {"coordinator": {"queued": 3}}
    del source
    assert dict(recorder.metrics()) == {}


def test_warnings_and_errors_of_the_library_are_noted(recorder):
    log, handler = logging.getLogger("stratagem.a.room"), WarningHandler(recorder)
    logging.getLogger("stratagem").addHandler(handler)
    try:
        log.info("nothing")
        log.warning("lost %s", "worker 1")
        log.error("gone")
    finally:
        logging.getLogger("stratagem").removeHandler(handler)
    notes = [(note["kind"], note["text"]) for note in recorder.take_notes()]
    assert notes == [("warning", "lost worker 1"), ("error", "gone")]
