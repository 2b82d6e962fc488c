"""What tasks print, from their launchers to the dashboard."""

import time

import pytest

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.telemetry.monitoring import log_sender
from stratagem._src.telemetry.monitoring.collector import Collector
from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR
from stratagem._src.telemetry.monitoring.log_sender import LOGS, LogSender
from stratagem._src.telemetry.monitoring.task_logs import LogQuery, TaskLogs
from stratagem._src.transport import Credentials, Identity, Message, TransportClient

SECRET = "correct horse battery staple"


def texts(logs, **query):
    return [line["text"] for line in logs.find(LogQuery(**query))["lines"]]


def several(*names):
    return [(0.0, False, name) for name in names]


# --- what is kept ---------------------------------------------------------------------------------------


def test_lines_of_all_tasks_are_in_the_order_of_their_arrival():
    logs = TaskLogs()
    logs.add("worker 0", several("a", "b"))
    logs.add("worker 1", several("c"))
    logs.add("worker 0", several("d"))
    assert texts(logs) == ["a", "b", "c", "d"]
    assert texts(logs, task="worker 0") == ["a", "b", "d"]
    assert texts(logs, limit=2) == ["c", "d"]
    assert texts(logs, task="worker 2") == []


def test_a_search_finds_words_in_lower_and_upper_case():
    logs = TaskLogs()
    logs.add("worker 0", several("step 1 loss 0.5", "WARNING: slow", "a warning", "step 2"))
    assert texts(logs, text="Warning") == ["WARNING: slow", "a warning"]
    assert texts(logs, text="loss 0") == ["step 1 loss 0.5"]
    assert texts(logs, text="step", limit=1) == ["step 2"]


def test_only_what_is_new_is_asked_for():
    logs = TaskLogs()
    assert logs.find(LogQuery()) == {"lines": [], "last": -1}
    logs.add("worker 0", several("a", "b"))
    last = logs.find(LogQuery(text="a"))[
        "last"
    ]  # of all lines: those that do not match are over, too
    logs.add("worker 1", several("c a", "d"))
    assert texts(logs, after=last) == ["c a", "d"]
    assert texts(logs, after=last, text="a") == ["c a"]


def test_memory_is_bounded_and_a_task_that_prints_much_takes_nothing_from_others():
    logs = TaskLogs(max_bytes=2**20)
    logs.add("worker 1", several("the only line"))
    for number in range(40):
        logs.add("worker 0", several(*(f"{number} " + 500 * "x" for _ in range(100))))
    kept = texts(logs, task="worker 0", limit=10**6)
    assert 300 < len(kept) <= 2**19 / 700  # half of the memory
    assert kept[-1].startswith("39 ")
    assert texts(logs, task="worker 1") == ["the only line"]


def test_odd_queries_ask_for_all():
    assert LogQuery.parse({}) == LogQuery()
    assert LogQuery.parse({"after": "x", "task": "ps 0"}) == LogQuery(task="ps 0")
    assert len(LogQuery.parse({"text": 1000 * "y"}).text) == 200


# --- how it gets there ----------------------------------------------------------------------------------


@pytest.fixture
def logs():
    return TaskLogs()


@pytest.fixture
def collector(logs):
    with Collector("127.0.0.1", SECRET, logs=logs) as collector:
        yield collector


@pytest.fixture
def sender(collector, monkeypatch):
    monkeypatch.setattr(log_sender, "_SECONDS", 0.02)
    sender = LogSender(collector.address, SECRET)
    yield sender
    sender.close()


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_lines_arrive_without_escape_sequences(sender, logs):
    sender.line("worker 0", "\x1b[32mdone\x1b[0m \x1b]0;title\x07", False)
    sender.line("worker 1", "failed", True)
    wait_for(lambda: len(texts(logs)) == 2)
    assert texts(logs, task="worker 0") == ["done \\x1b]0;title\\x07"]
    [line] = logs.find(LogQuery(task="worker 1"))["lines"]
    assert line["is_error"] is True
    assert abs(line["time"] - time.time()) < 60


def test_lines_of_tasks_of_one_host_keep_their_order(collector, logs, monkeypatch):
    monkeypatch.setattr(log_sender, "_SECONDS", 1.0)  # all in one message
    sender = LogSender(collector.address, SECRET)
    for number in range(6):
        sender.line(f"worker {number % 2}", str(number), False)
    wait_for(lambda: len(texts(logs)) == 6)
    assert texts(logs) == ["0", "1", "2", "3", "4", "5"]
    sender.close()


def test_a_task_that_prints_too_fast_is_told_so(collector, logs, monkeypatch):
    monkeypatch.setattr(log_sender, "_MAX_LINES", 3)
    monkeypatch.setattr(log_sender, "_SECONDS", 1.0)
    sender = LogSender(collector.address, SECRET)
    for number in range(10):
        sender.line("worker 0", str(number), False)
    wait_for(lambda: any("missing" in text for text in texts(logs)))
    assert texts(logs)[:3] == ["0", "1", "2"]
    assert "(7 lines are missing here" in texts(logs)[3]
    sender.close()


def test_without_a_dashboard_nothing_more_is_sent(monkeypatch):
    monkeypatch.setattr(log_sender, "_SECONDS", 0.02)
    with Collector("127.0.0.1", SECRET) as collector:
        sender = LogSender(collector.address, SECRET)
        sender.line("worker 0", "a", False)
        wait_for(sender._closed.is_set)
        sender.line("worker 0", "b", False)
        assert not sender._lines
        sender.close()


def test_a_collector_that_is_gone_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(log_sender, "_SECONDS", 0.02)
    with Collector("127.0.0.1", SECRET, logs=TaskLogs()) as collector:
        address = collector.address
    sender = LogSender(address, SECRET)
    sender.line("worker 0", "a", False)
    wait_for(lambda: sender._num_missing["worker 0"] == 1)
    sender.close()


def test_what_are_no_lines_is_refused(collector, logs):
    client = TransportClient(
        collector.address, Credentials(secret=SECRET), wanted=COLLECTOR, own=Identity("launcher")
    )
    for body in (b"", b"1", b'[["worker 0", [1]]]', b'[["worker 0", [["x", true, "y"]]]]'):
        with pytest.raises(InvalidArgumentError, match="same version"):
            client.call(LOGS, Message(body), timeout=10)
    client.close()
    assert texts(logs) == []
