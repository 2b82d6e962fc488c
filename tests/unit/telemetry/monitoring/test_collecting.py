"""From a task's measurements over the network to events: real reporters, a real collector."""

import json
import logging
import os
import re
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.errors import InvalidArgumentError, UnauthenticatedError
from stratagem._src.telemetry.measurement.interval import Interval
from stratagem._src.telemetry.measurement.recorder import activity, recorder
from stratagem._src.telemetry.monitoring.collector import Collector, EventsFile
from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR, CollectorAddress
from stratagem._src.telemetry.monitoring.job_events import SampleEvents
from stratagem._src.telemetry.monitoring.reporter import SAMPLE, Reporter
from stratagem._src.telemetry.monitoring.sample import Sample
from stratagem._src.transport import Credentials, Identity, Message, TransportClient

SECRET = "correct horse battery staple"


@pytest.fixture
def events_file(tmp_path):
    return tmp_path / "folder" / "events.jsonl"


@pytest.fixture
def collector(events_file):
    with Collector("127.0.0.1", SECRET, events_file) as collector:
        yield collector


@pytest.fixture
def reporter(collector):
    """A reporter that sends one sample: when it is closed."""
    address = CollectorAddress(collector.address, Credentials(secret=SECRET), "worker 0")
    reporter = Reporter(address, seconds=3600.0)
    yield reporter
    reporter.close()


def events_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_a_task_did_reaches_the_view_and_the_file(collector, reporter, events_file):
    observer = recorder()
    for _ in range(3):
        observer.as_step(lambda: None)()
        observer.draw(lambda: np.zeros((4, 2)), len)
    observer.report({"loss": jnp.float32(0.5), "broken": float("nan")})
    logging.getLogger("stratagem").warning("Lost a worker.")
    reporter.close()
    assert recorder() is None
    [task] = collector.view()["tasks"]
    assert (task["task"], task["steps"], task["examples"]) == ("worker 0", 3, 12)
    assert task["reported"]["loss"] == 0.5
    assert task["memory"] > 2**20
    first, second = events_in(events_file)
    assert (first["event"], first["steps"], first["reported"]["broken"]) == ("sample", 3, "nan")
    parts = first["step"]
    assert parts["total"] == pytest.approx(
        parts["input"] + parts["compute"] + parts["other"], rel=0.01
    )
    assert (second["event"], second["kind"], second["text"]) == (
        "note",
        "warning",
        "Lost a worker.",
    )


def test_samples_are_sent_again_and_again(collector):
    address = CollectorAddress(collector.address, Credentials(secret=SECRET), "worker 0")
    reporter = Reporter(address, seconds=0.01)
    try:
        deadline = time.monotonic() + 30
        while not collector.view()["tasks"] or len(collector.view()["tasks"][0]["points"]) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        reporter.close()


def test_the_processor_time_and_the_activity_of_a_task_are_sent(collector):
    began, used = time.monotonic(), time.process_time()
    address = CollectorAddress(collector.address, Credentials(secret=SECRET), "worker 0")
    reporter = Reporter(address, seconds=3600.0)
    after = time.process_time() + 0.2
    while time.process_time() < after:  # a busy core
        pass
    with activity("compiling"):
        reporter.close()
    [task] = collector.view()["tasks"]
    seconds, used = time.monotonic() - began, time.process_time() - used
    assert 0.2 / seconds <= task["cpu"] < 2 * used / 0.2
    assert task["state"] == "compiling"


def test_a_recovery_is_noted_with_its_time(collector, events_file):
    collector.note("attempt_started", attempt=0, tasks=["worker 0"])
    collector.note("task_ended", task="worker 0", exit_code=137, failed=True, text="killed")
    collector.note("task_started", task="worker 0", reason="worker 0 was killed")
    address = CollectorAddress(collector.address, Credentials(secret=SECRET), "worker 0")
    reporter = Reporter(address, seconds=3600.0)
    recorder().as_step(lambda: None)()
    reporter.close()
    assert re.fullmatch(
        r"worker 0 trains again, \d+\.\d s after it failed", events_in(events_file)[-1]["text"]
    )
    assert collector.view()["notes"][-1]["kind"] == "recovery"


def test_a_figure_that_was_given_away_is_left_out(collector, reporter):
    gone = jnp.zeros(()) + 1
    gone.delete()
    recorder().report({"gone": gone, "kept": 2})
    reporter.close()
    [task] = collector.view()["tasks"]
    assert task["reported"] == {"kept": 2.0}


def test_a_task_does_not_mind_that_nobody_listens(tmp_path):
    with Collector("127.0.0.1", SECRET) as collector:
        address = CollectorAddress(collector.address, Credentials(secret=SECRET), "worker 0")
    reporter = Reporter(address, seconds=3600.0)
    recorder().as_step(lambda: None)()
    reporter.close()


def test_who_does_not_know_the_secret_is_not_heard(collector):
    wrong = Credentials(secret="incorrect horse battery staple")
    caller = TransportClient(collector.address, wrong, wanted=COLLECTOR, own=Identity("stranger"))
    with pytest.raises(UnauthenticatedError):
        caller.call(SAMPLE, Message(Sample("worker 0", 1, 0.0, 1, 1).to_bytes()), timeout=10)
    caller.close()
    assert collector.view()["tasks"] == []


def test_what_is_no_sample_is_refused(collector):
    caller = TransportClient(
        collector.address, Credentials(secret=SECRET), wanted=COLLECTOR, own=Identity("task")
    )
    for body in (b"", b"[]", b'{"task": 1}'):
        with pytest.raises(InvalidArgumentError, match="same version"):
            caller.call(SAMPLE, Message(body), timeout=10)
    caller.close()
    assert collector.view()["tasks"] == []


def test_what_the_launcher_knows(collector, events_file):
    collector.note("attempt_started", attempt=0, tasks=["worker 0"])
    collector.note("note", kind="recovery", text="restart 1 of the job")
    assert [event["event"] for event in events_in(events_file)] == ["attempt_started", "note"]
    assert collector.view()["notes"][0]["text"] == "restart 1 of the job"


def test_events_come_after_what_is_in_the_file(events_file):
    for name in ("first", "second"):
        with Collector("127.0.0.1", SECRET, events_file) as collector:
            collector.note("job_started", name=name)
    assert [event["name"] for event in events_in(events_file)] == ["first", "second"]


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="--events must be a writable file"):
        Collector("127.0.0.1", SECRET, tmp_path / "file" / "events.jsonl")


def test_a_full_disk_ends_the_file_and_not_the_job():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    told = []
    with Collector("127.0.0.1", SECRET, full, told.append) as collector:
        collector.note("job_started", name="train")
        collector.note("attempt_started", attempt=0, tasks=["worker 0"])
        [note] = collector.view()["notes"]
    assert "Stopped writing events" in note["text"]
    assert told == ["Stopped writing events: No space left on device. The job continues."]


def test_an_event_that_fits_in_part_leaves_no_part(events_file, monkeypatch):
    write = os.write
    with Collector("127.0.0.1", SECRET, events_file) as collector:
        collector.note("job_started", name="train")
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
        collector.note("attempt_started", attempt=0, tasks=["worker 0"])
        monkeypatch.undo()
    assert [event["event"] for event in events_in(events_file)] == ["job_started"]


def test_where_the_time_of_a_step_goes():
    events = SampleEvents()
    joint = [(number, 0.1) for number in range(10)]
    quick = Interval(10, 2.0, 1.5, 0.3, 0.2, 40, joint)
    late = Interval(10, 2.0, 1.0, 0.0, 0.0, 40, [(number, 0.05) for number in range(10)])
    events.of(Sample("worker 1", 2, 0.0, 10, 40, late))
    [event] = events.of(Sample("worker 0", 1, 0.0, 10, 40, quick))
    assert event["steps_per_second"] == 5.0
    assert event["examples_per_second"] == 20.0
    assert event["straggler"] == "worker 1"
    assert event["step"] == pytest.approx(
        {
            "input": 0.03,
            "compute": 0.08,
            "communication": 0.02,
            "waiting": 0.05,
            "other": 0.02,
            "total": 0.2,
        }
    )
    [event] = events.of(Sample("worker 0", 1, 0.0, 10, 40, Interval(seconds=1.0)))
    assert event["step"] is None


def test_a_process_that_was_started_again_is_compared_anew():
    events = SampleEvents()
    joint = [(number, 0.1) for number in range(10)]
    events.of(Sample("worker 0", 1, 0.0, 10, 0, Interval(10, 1.0, joint=joint)))
    events.of(
        Sample("worker 1", 2, 0.0, 10, 0, Interval(10, 1.0, joint=[(n, 0.01) for n, _ in joint]))
    )
    [event] = events.of(Sample("worker 0", 3, 0.0, 0, 0, Interval(1, 1.0)))
    assert event["straggler"] is None


def test_events_are_for_this_user_only(tmp_path):
    before = os.umask(0)
    try:
        EventsFile(tmp_path / "new" / "events.jsonl").close()
    finally:
        os.umask(before)
    for path in (tmp_path / "new", tmp_path / "new" / "events.jsonl"):
        assert path.stat().st_mode & 0o077 == 0
    (tmp_path / "shared.jsonl").touch(0o644)
    EventsFile(tmp_path / "shared.jsonl").close()
    assert (tmp_path / "shared.jsonl").stat().st_mode & 0o777 == 0o644  # as its owner wanted
