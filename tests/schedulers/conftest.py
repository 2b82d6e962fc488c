"""Programs for the tasks of a job, and a check that no test leaves a process behind."""

import os
import sys
import uuid
from pathlib import Path

import pytest

MULTIPROCESS = Path(__file__).parents[1] / "multiprocess"
sys.path.insert(0, str(MULTIPROCESS))

from processes import MARK, marked, poll  # noqa: E402

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
print("workers", strategy.cluster_resolver.num_processes, "sum", sums, flush=True)
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
def _without_secrets(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("STRATAGEM_", "SLURM_", "OMPI_", "TF_CONFIG")):
            monkeypatch.delenv(name)
