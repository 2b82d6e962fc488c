"""A task that is profiled because another one asks for it."""

import json
import threading

import pytest

from stratagem._src.core.errors import ProfileError, UnavailableError
from stratagem._src.profiling.task import profile_service
from stratagem._src.profiling.task.profile_service import (
    CLOCK,
    PROCESS,
    START,
    STOP,
    ProfileService,
)
from stratagem._src.profiling.task.record_events import recorded_events
from stratagem._src.profiling.task.task_profile import TaskProfile
from stratagem._src.telemetry.measurement.recorder import recorder, span
from stratagem._src.transport import Message


@pytest.fixture
def service():
    service = ProfileService("ps 1")
    yield service
    service.close()
    assert service._background.join(10.0) == []
    assert recorder() is None


def ask(service, method, what):
    return service.handlers[method](Message(json.dumps(what).encode()))


def begin(service, profile="a", process="another"):
    answer = ask(service, START, {"process": process, "profile": profile, "options": {}})
    return json.loads(answer.body)


def test_what_a_task_does_meanwhile_is_in_its_profile(service):
    assert not begin(service)["is_own"]
    with span("serve push", "push", updates=3):
        pass
    now = json.loads(ask(service, CLOCK, None).body)
    profile = TaskProfile.from_message(ask(service, STOP, "a"))
    assert profile.task == "ps 1"
    [event] = [e for e in recorded_events(profile, profile.began_ns) if e.kind == "push"]
    assert (event.name, event.details["updates"]) == ("serve push", 3)
    assert profile.began_ns + event.begin_ns + event.duration_ns <= now + 1_000_000
    assert recorder() is None


def test_a_process_does_not_record_itself_twice(service):
    assert begin(service, process=PROCESS)["is_own"]
    with pytest.raises(UnavailableError, match="no such profile"):
        ask(service, STOP, "a")


def test_a_second_profile_is_refused_and_the_first_goes_on(service):
    begin(service)
    with pytest.raises(ProfileError, match="one profile at a time"):
        begin(service, profile="b")
    with span("after the refusal", "test"):
        pass
    with pytest.raises(UnavailableError):
        ask(service, STOP, "b")
    profile = TaskProfile.from_message(ask(service, STOP, "a"))
    assert "after the refusal" in [e.name for e in recorded_events(profile, profile.began_ns)]
    begin(service, profile="c")
    ask(service, STOP, "c")


def test_a_profile_that_nobody_wants_any_more_is_thrown_away(service, monkeypatch, caplog):
    monkeypatch.setattr(profile_service, "_KEEPALIVE_TIMEOUT", 0.0)
    begin(service)
    assert service._background.join(20.0) == []
    assert "discarded its profile" in caplog.text
    assert recorder() is None
    with pytest.raises(UnavailableError, match="no such profile"):
        ask(service, STOP, "a")


def test_closing_ends_a_recording():
    service = ProfileService("worker 0")
    begin(service)
    service.close()
    assert recorder() is None
    assert service._background.join(10.0) == []
    assert not any(thread.name == "profile-watch" for thread in threading.enumerate())
