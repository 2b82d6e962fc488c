"""Reports and orders between nodes: only ever JSON, and understood or refused."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster import Task
from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.launcher.cluster_plan import NodeOffer, plan_cluster
from stratagem._src.launcher.event_serialization import (
    order_from_json,
    order_to_json,
    report_from_json,
    report_to_json,
)
from stratagem._src.launcher.events import (
    Finish,
    ForwardSignal,
    Interrupted,
    NodeJoined,
    NodeStopped,
    Rejoin,
    RestartNode,
    RestartTask,
    ShutdownNotice,
    Start,
    Stop,
    TaskEnded,
)
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_exit import TaskExit

OFFER = NodeOffer(1, "host", TaskCounts(workers=1, evaluator=True), (7,))


REPORTS = [
    NodeJoined(OFFER),
    TaskEnded(TaskExit(Task("worker", 3), -9, False, "ünïcode\n")),
    NodeStopped(1),
    ShutdownNotice(10),
    Interrupted(15),
]
ORDERS = [
    Start(2, "id", plan_cluster([OFFER, NodeOffer(0, "h", TaskCounts(), (5,))])),
    Start(2, "id", plan_cluster([OFFER]), "h:7000"),
    RestartTask(Task("worker", 1), "worker 1 was killed by SIGKILL"),
    ForwardSignal(12, (Task("worker", 0), Task("chief", 0))),
    RestartNode(1, Start(0, "id", plan_cluster([OFFER])), "the launcher of node 1 is back"),
    Stop(15, 2.5),
    Rejoin(1, "worker 0 failed"),
    Finish(3, "why"),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_reports_survive_json(report):
    assert report_from_json(json.loads(json.dumps(report_to_json(report)))) == report


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_orders_survive_json(order):
    assert order_from_json(json.loads(json.dumps(order_to_json(order)))) == order


LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
FIELDS = ["offer", "ending", "node", "signal", "counts", "workers", "ports", "host", "task"]
OBJECT = st.dictionaries(st.sampled_from(FIELDS), LEAF | st.lists(LEAF, max_size=3), max_size=4)


@given(
    st.sampled_from(["NodeJoined", "TaskEnded", "NodeStopped", "Interrupted", "x", None]),
    st.dictionaries(st.sampled_from(FIELDS[:4]), LEAF | OBJECT, max_size=2),
)
def test_malformed_reports_raise_only_the_named_error(kind, fields):
    understood = kind
    with contextlib.suppress(RendezvousError):
        understood = type(report_from_json({**fields, "kind": kind})).__name__
    assert understood == kind


@pytest.mark.parametrize(
    "change",
    [
        {"ports": []},
        {"host": "a b"},
        {"ports": [70000]},
        {"counts": {"workers": -1}},
        {"counts": {"workers": 1, "x": 1}},
    ],
)
def test_malformed_offer_is_refused(change):
    message = report_to_json(NodeJoined(OFFER))
    message["offer"] = {**message["offer"], **change}
    with pytest.raises(RendezvousError, match="same version"):
        report_from_json(message)
