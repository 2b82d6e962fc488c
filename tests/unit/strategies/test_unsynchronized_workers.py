"""A strategy of one process says so where there are several workers."""

import json
import logging

import pytest

import stratagem as sg
from stratagem._src.strategies import unsynchronized_workers

WORKERS = ["127.0.0.1:4711", "127.0.0.1:4712"]
MAKERS = {
    "MirroredStrategy": lambda: sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "OneDeviceStrategy": lambda: sg.distribute.OneDeviceStrategy("CPU:0"),
    "CentralStorageStrategy": lambda: sg.distribute.experimental.CentralStorageStrategy(["CPU:0"]),
}


@pytest.fixture(autouse=True)
def _not_warned_yet(monkeypatch):
    monkeypatch.setattr(unsynchronized_workers, "_warned", [])


@pytest.fixture
def be(monkeypatch):
    def be(task_type, index, **cluster):
        config = {"cluster": cluster, "task": {"type": task_type, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return be


@pytest.fixture
def warnings(caplog):
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", MAKERS)
def test_the_leader_warns_once_and_names_the_fix(be, warnings, kind):
    be("worker", 0, worker=WORKERS)
    for _ in range(3):
        MAKERS[kind]()
    [warning] = warnings()
    assert warning.startswith(f"{kind} trains only on this process's devices")
    assert "one of 2 workers (TF_CONFIG describes a cluster)" in warning
    assert "use MultiWorkerMirroredStrategy()" in warning


@pytest.mark.parametrize(
    ("task", "cluster"),
    [
        (("worker", 1), {"worker": WORKERS}),  # the leader says so
        (("worker", 0), {"chief": ["127.0.0.1:1"], "worker": WORKERS}),
        (("worker", 0), {"worker": WORKERS[:1]}),
        (("evaluator", 0), {"worker": WORKERS}),
        (("chief", 0), {"chief": ["127.0.0.1:1"], "worker": WORKERS, "ps": ["127.0.0.1:2"]}),
        (("worker", 0), {"worker": WORKERS, "ps": ["127.0.0.1:2"]}),
        (("wroker", 0), {"worker": WORKERS}),  # for MultiWorkerMirroredStrategy to say
    ],
)
def test_who_is_alone_by_its_nature_does_not_warn(be, warnings, task, cluster):
    be(*task, **cluster)
    MAKERS["MirroredStrategy"]()
    assert not warnings()


def test_without_a_cluster_nobody_warns(monkeypatch, warnings):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    MAKERS["MirroredStrategy"]()
    monkeypatch.setenv("TF_CONFIG", "{")
    MAKERS["MirroredStrategy"]()
    assert not warnings()


@pytest.mark.parametrize(("rank", "number"), [("0", 1), ("1", 0)])
def test_other_launchers_have_several_workers_too(monkeypatch, warnings, rank, number):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for variable, text in {
        "RANK": rank,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
    }.items():
        monkeypatch.setenv(variable, text)
    MAKERS["MirroredStrategy"]()
    assert len(warnings()) == number


@pytest.mark.parametrize(
    ("task", "said"),
    [(("worker", 7), "got 7"), (("wroker", 0), "got 'wroker'"), (("worker", None), "task_id must")],
)
def test_a_worker_that_cannot_be_is_refused_though_it_is_the_only_one(be, task, said):
    be(*task, worker=WORKERS[:1])
    with pytest.raises(ValueError, match=f"{said}.*Correct TF_CONFIG"):
        sg.distribute.MultiWorkerMirroredStrategy()


def test_two_workers_at_one_address_are_refused_at_once(be):
    be("worker", 0, worker=["localhost:4711", "127.0.0.1:4711"])
    with pytest.raises(ValueError, match=r"'127\.0\.0\.1:4711' for worker 0 and for worker 1"):
        sg.distribute.MultiWorkerMirroredStrategy()
