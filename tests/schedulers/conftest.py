"""Programs for the tasks of a job, and a check that no test leaves a process behind."""

import contextlib
import json
import os
import re
import signal
import sys
import uuid
from pathlib import Path

import pytest

MULTIPROCESS = Path(__file__).parents[1] / "multiprocess"
sys.path.insert(0, str(MULTIPROCESS))

from processes import MARK, marked, poll  # noqa: E402

from stratagem._src.cluster.reserved_ports import ReservedPorts  # noqa: E402
from stratagem._src.core.errors import UnavailableError  # noqa: E402
from stratagem._src.telemetry.monitoring.dashboard_client import DashboardClient  # noqa: E402

IN_STEP = """
import os
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()


@sg.function
def total(x):
    return strategy.run(
        lambda x: sg.distribute.get_replica_context().all_reduce("SUM", x), args=(x,)
    )


rank = strategy.cluster_resolver.process_id
values = strategy.experimental_distribute_values_from_function(lambda _: np.float32(rank + 1))
sums = [float(x) for x in strategy.experimental_local_results(total(values))]
# In one piece: mpirun may put what another writes in between.
print(f"workers {strategy.cluster_resolver.num_processes} sum {sums}\\n", end="", flush=True)
"""

OBSERVED = """
import time
from pathlib import Path
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    count = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)


@sg.function
def step():
    strategy.run(lambda: count.assign_add(np.float32(1.0)))


for _ in range(3):
    step()
sg.train.report(count=float(count.read_value()))
while not Path("go").exists():
    time.sleep(0.05)
"""

SERVERS = """
import numpy as np
import stratagem as sg

resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    sg.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
strategy = sg.distribute.ParameterServerStrategy(resolver)
coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = sg.Variable(np.float32(0.0))


@sg.function
def add():
    count.assign_add(1.0)


for _ in range(20):
    coordinator.schedule(add)
coordinator.join()
print("counted", float(count.numpy()), flush=True)
"""


EVERYTHING = ["--chief", "--workers", "2", "--ps", "1", "--evaluator", "--devices-per-worker", "2"]
EVERYTHING += ["--env", "WORDS=a b;'c'", "--log-dir", "logs"]
SHOW = """
import json, os, sys, time
import jax
task = json.loads(os.environ["TF_CONFIG"])["task"]
words = [os.environ["WORDS"], sys.argv[1], len(jax.devices())]
print("shows", task["type"], task["index"], *words, flush=True)
while task["type"] == "ps": time.sleep(0.1)
"""


@pytest.fixture
def show(program, tmp_path):
    """Runs ``SHOW`` in tasks of every kind, and sees that all flags reach all of them."""

    def show(run):
        job = run(*EVERYTHING, program(SHOW), "$x 1")
        out, err = job.communicate(timeout=250)
        assert job.returncode == 0, out + err
        tasks = ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]
        for task in tasks:
            line = f"shows {task} a b;'c' $x 1 2"
            assert re.search(rf"^\[{task}\] +{re.escape(line)}$", out, re.M), out + err
            log = tmp_path / "logs" / f"{task.replace(' ', '-')}.log"
            assert line in log.read_text()

    return show


@pytest.fixture
def watch(tmp_path):
    """Starts ``OBSERVED`` in two workers, and sees that its page and its events show both."""

    def watch(start):
        program = tmp_path / "train.py"
        program.write_text(OBSERVED)
        events = tmp_path / "events.jsonl"
        with ReservedPorts(1) as [port]:
            page = f"127.0.0.1:{port}"
        flags = ["--workers", "2", "--events", str(events), "--dashboard-address", page]
        job = start(*flags, str(program))

        def shown():
            with contextlib.suppress(UnavailableError):
                tasks = DashboardClient(page).view()["tasks"]
                return {t["task"]: (t["steps"], t["reported"].get("count")) for t in tasks}

        both = {"worker 0": (3, 6.0), "worker 1": (3, 6.0)}
        poll(lambda: shown() == both or job.poll() is not None, 240)
        (tmp_path / "go").touch()
        out, err = job.communicate(timeout=150)
        assert job.returncode == 0, out + err
        assert f"http://{page}/" in out + err
        told = [json.loads(line) for line in events.read_text().splitlines()]
        kinds = [event["event"] for event in told if event["event"] != "sample"]
        assert kinds == ["job_started", "attempt_started", "task_ended", "task_ended", "job_ended"]

    return watch


@pytest.fixture
def mark(monkeypatch):
    """Marks every process that the test starts, and fails the test if one is left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    try:
        poll(lambda: not marked(mark), 20.0)
    finally:
        for process in marked(mark):
            process.kill()


@pytest.fixture
def program(tmp_path):
    """Writes a program and returns its path."""

    def write(source):
        path = tmp_path / "train.py"
        path.write_text(source)
        return str(path)

    return write


@pytest.fixture(autouse=True)
def _ctrl_c():
    """Lets what a test starts hear Ctrl-C: what a shell starts in the background does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _without_secrets(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("STRATAGEM_", "SLURM_", "OMPI_", "TF_CONFIG")):
            monkeypatch.delenv(name)
