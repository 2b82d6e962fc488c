"""A lock that threads get in the order in which they asked for it."""

import threading
import time

import pytest

from stratagem._src.core.fair_lock import FairLock

PATIENCE = 60


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_threads_pass_in_the_order_in_which_they_came():
    lock, passed = FairLock(), []
    threads = [
        threading.Thread(target=lock.run, args=(lambda i=i: passed.append(i),)) for i in range(5)
    ]

    def hold():
        for number, thread in enumerate(threads, 2):
            thread.start()
            wait_for(lambda number=number: len(lock._queue) == number)

    lock.run(hold)
    for thread in threads:
        thread.join(PATIENCE)
    assert passed == [0, 1, 2, 3, 4]
    assert not lock.is_taken


def test_one_that_takes_it_again_at_once_lets_others_through():
    lock, stop = FairLock(), threading.Event()

    def again_and_again():
        while not stop.is_set():
            lock.run(lambda: time.sleep(0.001))

    greedy = threading.Thread(target=again_and_again)
    greedy.start()
    for _ in range(20):
        lock.run(lambda: None)
    stop.set()
    greedy.join(PATIENCE)


def test_an_error_inside_or_while_waiting_leaves_it_to_the_next():
    lock = FairLock()
    with pytest.raises(KeyError):
        lock.run(lambda: {}[0])
    assert not lock.is_taken
    entered, leave = threading.Event(), threading.Event()

    def hold():
        entered.set()
        assert leave.wait(PATIENCE)

    holder = threading.Thread(target=lock.run, args=(hold,))
    holder.start()
    assert entered.wait(PATIENCE)

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("stratagem._src.core.fair_lock._POLL_SECONDS", 0.01)
        patched.setattr("stratagem._src.core.fair_lock.WaitingNotice.is_due", lambda self: True)
        with pytest.raises(KeyboardInterrupt):
            lock.run(lambda: None, interrupt)
    leave.set()
    holder.join(PATIENCE)
    assert lock.run(lambda: 1) == 1


def test_a_thread_knows_that_it_holds_it():
    lock = FairLock()
    assert not lock.is_wanted_here()
    assert lock.run(lock.is_wanted_here)
    seen = []
    other = threading.Thread(target=lambda: seen.append(lock.is_wanted_here()))
    lock.run(lambda: (other.start(), other.join(PATIENCE)))
    assert seen == [False]
