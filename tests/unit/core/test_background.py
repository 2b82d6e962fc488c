import logging
import threading
import traceback

import pytest

from stratagem._src.process.background import Background


def fail_here():
    raise KeyError("lost")


def test_an_unexpected_error_reaches_every_later_check_with_its_own_traceback(caplog):
    background = Background("a test")
    background.start(fail_here, name="failing")
    assert background.join(10) == []
    lengths = []
    for _ in range(3):
        with pytest.raises(KeyError, match="lost") as caught:
            background.check()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert frames[-1].name == "fail_here"
        lengths.append(len(frames))
    assert lengths[0] == lengths[2]
    assert "'failing' of a test" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


def test_the_owner_is_told_at_once_if_it_wants(caplog):
    told = []
    background = Background("a test", on_failure=told.append)
    background.start(fail_here, name="failing")
    background.join(10)
    assert [type(error) for error in told] == [KeyError]


def test_join_names_who_still_runs():
    release = threading.Event()
    background = Background("a test")
    thread = background.start(release.wait, 30, name="slow")
    assert thread.daemon
    assert background.join(0.01) == ["slow"]
    assert background.alive() == [thread]
    release.set()
    assert background.join(10) == []
    background.check()


def test_a_thread_may_join_its_siblings():
    background = Background("a test")
    left = []
    background.start(lambda: left.append(background.join(5)), name="joining")
    background.join(10)
    assert left == [[]]


def test_threads_held_up_in_other_code_are_left_with_a_warning_that_names_it(caplog):
    release, held = threading.Event(), threading.Event()

    def users_function():
        held.set()
        release.wait()

    background = Background("somebody")
    background.start(users_function, name="held up")
    assert held.wait(10)
    with caplog.at_level(logging.WARNING, "stratagem"):
        assert not background.join_or_abandon(0.01)
    assert "'held up' of somebody" in caplog.text
    assert "users_function" in caplog.text
    release.set()
    assert background.join_or_abandon(10)
