"""A job that is observed: real processes, and what they tell of themselves."""

import json
import signal
import urllib.parse
import urllib.request

import pytest
from processes import poll

from stratagem._src.cli import main
from stratagem._src.telemetry.monitoring.monitored_jobs import monitored_jobs

SECONDS = 200.0
pytestmark = pytest.mark.timeout(2 * SECONDS)

TRAIN = """
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
data = sg.data.Dataset.from_tensor_slices(np.ones(40, np.float32)).batch(4)
options = sg.data.Options()
options.experimental_distribute.auto_shard_policy = sg.data.experimental.AutoShardPolicy.DATA
iterator = iter(strategy.experimental_distribute_dataset(data.with_options(options)))

@sg.function
def step(x):
    strategy.run(lambda x: total.assign_add(x.sum()), args=(x,))
    return total.read_value()

for x in iterator:
    sg.train.report(total=step(x))
"""


HELLO = "print('Hello from', index, file=sys.stderr, flush=True); hang()"


def events_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(events, kind, **details):
    return [e for e in events if e["event"] == kind and details.items() <= e.items()]


def test_two_workers_tell_of_their_steps(start, script, tmp_path):
    job = start("run", "--workers", 2, "--events", "events.jsonl", script(TRAIN)).finish(
        timeout=SECONDS
    )
    assert job.returncode == 0, job.stderr
    events = events_in(tmp_path / "events.jsonl")
    assert [e["event"] for e in events[:2]] == ["job_started", "attempt_started"]
    assert events[0]["name"] == "train"
    assert events[1]["tasks"] == ["worker 0", "worker 1"]
    assert events[-1] == {**events[-1], "event": "job_ended", "exit_code": 0}
    for task in ("worker 0", "worker 1"):
        last = of_kind(events, "sample", task=task)[-1]
        assert (last["steps"], last["examples"]) == (10, 20)
        reported = {
            k: v for e in of_kind(events, "sample", task=task) for k, v in e["reported"].items()
        }
        assert reported == {"total": 40.0}
        assert last["memory"] > 2**20
        assert last["figures"]["device_memory"]["bytes"] > 0
        [ended] = of_kind(events, "task_ended", task=task)
        assert (ended["exit_code"], ended["failed"]) == (0, False)
    steps = [e["step"] for e in of_kind(events, "sample") if e["step"] is not None]
    assert steps
    for parts in steps:
        assert all(seconds >= 0 for seconds in parts.values())


def test_failures_and_restarts_are_events(start, script, tmp_path):
    program = script("print('about to fail'); sys.exit(3)")
    flags = ["--events", "events.jsonl", "--max-restarts", 1]
    job = start("run", *flags, program).finish(timeout=SECONDS)
    assert job.returncode == 3
    events = events_in(tmp_path / "events.jsonl")
    assert [e["event"] for e in events] == [
        "job_started",
        "attempt_started",
        "task_ended",
        "note",
        "attempt_started",
        "task_ended",
        "job_ended",
    ]
    assert events[2]["text"] == "worker 0 failed with exit code 3\nabout to fail"
    assert (events[3]["kind"], events[4]["attempt"]) == ("recovery", 1)
    assert events[-1]["exit_code"] == 3


def test_a_running_job_is_found_and_shown(start, script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    job = start("run", "--dashboard", "--workers", 2, script(HELLO))
    poll(lambda: len(list(tmp_path.glob("ready-worker-*"))) == 2, SECONDS)
    assert main(["top"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("train  running")
    assert "worker 1  starting" in shown
    [announced] = monitored_jobs()
    print_and_search(announced.link)
    job.process.send_signal(signal.SIGTERM)
    assert "stratagem: dashboard: http://127.0.0.1:" in job.finish(timeout=SECONDS).stderr
    assert main(["top"]) == 2  # nobody announces it any more


def print_and_search(link):
    """Searches the output of the two workers, as the page does after its link has set the cookie."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    opener.open(link, timeout=30).close()

    def found(**query):
        url = f"{link.partition('?')[0]}logs?{urllib.parse.urlencode(query)}"
        with opener.open(url, timeout=30) as answer:
            return json.load(answer)["lines"]

    poll(lambda: len(found(text="HELLO")) == 2, SECONDS)
    [line] = found(text="hello", task="worker 1")
    assert (line["task"], line["text"], line["is_error"]) == ("worker 1", "Hello from 1", True)
    assert found(text="no such text") == []


@pytest.mark.slow
def test_coordinator_and_servers_tell_of_themselves(start, script, tmp_path):
    program = script(
        "import stratagem as sg\n"
        "resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()\n"
        "if kind != 'chief':\n"
        "    sg.distribute.Server(resolver.cluster_spec(), kind, index).join()\n"
        "strategy = sg.distribute.ParameterServerStrategy(resolver)\n"
        "coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)\n"
        "with strategy.scope(): total = sg.Variable([0.0, 0.0])\n"
        "@sg.function\n"
        "def add(): total.assign_add([1.0, 1.0])\n"
        "def done():\n"
        "    text = Path('events.jsonl').read_text()\n"
        "    return '\"returned\":5' in text and '\"updates\":5' in text and '\"steps\":5' in text\n"
        "for _ in range(5): coordinator.schedule(add)\n"
        "coordinator.join()\n"
        "deadline = time.monotonic() + 150\n"
        "while not done() and time.monotonic() < deadline: time.sleep(0.05)\n"
    )
    flags = ["--events", "events.jsonl", "--workers", 1, "--ps", 1, "--chief"]
    job = start("run", *flags, program).finish(timeout=SECONDS)
    assert job.returncode == 0, job.stderr
    events = events_in(tmp_path / "events.jsonl")
    server = of_kind(events, "sample", task="ps 0")[-1]["figures"]["parameter_server"]
    assert server == {"variables": 1, "bytes": 8, "updates": 5}
    figures = [
        e["figures"]["coordinator"]
        for e in of_kind(events, "sample", task="chief 0")
        if "coordinator" in e["figures"]
    ][-1]
    assert (figures["queued"], figures["in_flight"], figures["returned"]) == (0, 0, 5)
    assert figures["latency_seconds"] > 0
    worker = [e for e in of_kind(events, "sample", task="worker 0") if e["step"]][-1]
    assert worker["step"]["communication"] > 0
