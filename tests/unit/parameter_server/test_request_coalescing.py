"""Threads that send together."""

import sys
import threading

import pytest

from stratagem._src.core.errors import ContextError
from stratagem._src.parameter_server.client.request_coalescing import RequestCoalescer


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_what_comes_while_a_message_is_under_way_goes_together():
    messages, release, started = [], threading.Event(), threading.Event()

    def send(contents):
        messages.append(list(contents))
        started.set()
        assert release.wait(10)
        return [None] * len(contents)

    joint = RequestCoalescer(send)
    first = in_threads(1, lambda _: joint.submit("first"))
    assert started.wait(10)
    others = in_threads(5, joint.submit)
    while len(joint._pending) < 5:
        threading.Event().wait(0.001)
    release.set()
    for thread in [*first, *others]:
        thread.join(10)
    assert messages[0] == ["first"]
    assert sorted(messages[1]) == [0, 1, 2, 3, 4]
    assert len(messages) == 2


def test_everything_is_sent_once_and_errors_reach_their_owner():
    sent, outcomes = [], {}

    def send(contents):
        sent.extend(contents)
        if 77 in contents:
            raise ConnectionError("gone")
        return [ValueError(content) if content % 10 == 3 else None for content in contents]

    joint = RequestCoalescer(send)

    def work(thread):
        for content in range(100 * thread, 100 * thread + 50):
            try:
                joint.submit(content)
                outcomes[content] = None
            except ValueError as error:
                outcomes[content] = error.args[0]

    for thread in in_threads(4, work):
        thread.join(10)
    assert sorted(sent) == sorted(outcomes)
    assert len(sent) == 200
    assert all(
        error == (content if content % 10 == 3 else None) for content, error in outcomes.items()
    )
    with pytest.raises(ConnectionError, match="gone"):
        joint.submit(77)
    joint.submit(1)


def test_an_interrupted_leader_lets_the_next_one_lead():
    interrupt = [True]

    def send(contents):
        if interrupt.pop() if interrupt else False:
            raise KeyboardInterrupt
        return [None] * len(contents)

    joint = RequestCoalescer(send)
    with pytest.raises(KeyboardInterrupt):
        joint.submit(1)
    joint.submit(2)


def interrupt_call(number, call):
    """Interrupts ``call`` where Python runs signal handlers: as a function begins, or after it returned.

    Returns:
        Whether there were that many such moments.
    """
    seen = -1

    def profile(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename.endswith(("request_coalescing.py", "fair_lock.py")):
            seen += event in ("call", "c_return")
            if seen == number:
                seen += 1
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return seen >= number


def test_an_interrupt_at_any_call_does_not_keep_others_from_sending():
    sent = []

    def send(contents):
        sent.extend(contents)
        return [None] * len(contents)

    joint, number = RequestCoalescer(send), 0
    while interrupt_call(number, lambda: joint.submit("interrupted")):
        (other,) = in_threads(1, joint.submit)
        other.join(10)
        assert not other.is_alive(), f"stuck after an interrupt at moment {number}"
        number += 1
    assert number > 15
    assert sent.count(0) == number
    assert sent.count("interrupted") <= number + 1


def test_a_handler_that_sends_while_it_interrupts_the_same_is_refused():
    sent = []

    def send(contents):
        sent.extend(contents)
        if contents == ["outer"]:
            with pytest.raises(ContextError, match="Set a flag in the handler"):
                sending.submit("inner")
        return [None] * len(contents)

    sending = RequestCoalescer(send)
    sending.submit("outer")
    sending.submit("next")
    assert sent == ["outer", "next"]
