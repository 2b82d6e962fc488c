"""The loop that drives a launcher, and calls from other threads."""

import threading
import time

from stratagem._src.launcher.event_loop import EventLoop


def test_a_call_from_another_thread_wakes_the_loop_and_is_made_in_its_thread():
    with EventLoop() as loop:
        called = []
        loop.call_at(time.monotonic() + 60, lambda: called.append("much later"))
        thread = threading.Timer(
            0.05, loop.call_soon, [lambda: called.append(threading.current_thread())]
        )
        thread.start()
        loop.run_once()
        thread.join()
    assert called == [threading.current_thread()]


def test_calls_are_made_in_order_and_those_of_calls_later():
    with EventLoop() as loop:
        called = []
        loop.call_soon(lambda: (called.append(1), loop.call_soon(lambda: called.append(3))))
        loop.call_soon(lambda: called.append(2))
        loop.run_once()
        assert called == [1, 2]
        loop.run_once()
        assert called == [1, 2, 3]


def test_more_calls_than_the_pipe_has_room_for():
    with EventLoop() as loop:
        called = []
        for number in range(100_000):
            loop.call_soon(lambda number=number: called.append(number))
        while len(called) < 100_000:
            loop.run_once()
    assert called == list(range(100_000))


def test_calls_after_the_end_are_not_made():
    called = []
    with EventLoop() as loop:
        loop.call_soon(lambda: called.append("in time"))
        loop.run_once()
    loop.call_soon(lambda: called.append("too late"))
    assert called == ["in time"]
