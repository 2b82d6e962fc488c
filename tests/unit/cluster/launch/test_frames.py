"""Messages between nodes: framed, limited, sealed, and only ever JSON."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.cluster import Task
from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.launch.cluster_plan import NodeOffer, plan_cluster
from stratagem.cluster.launch.events import (
    Finish,
    Interrupted,
    JoinAgain,
    NodeJoined,
    NodeStopped,
    Start,
    StartAgain,
    Stop,
    TaskEnded,
)
from stratagem.cluster.launch.frames import FrameReader, Seal, frame, to_json
from stratagem.cluster.launch.greeting import answer_challenge, challenge, check_answer
from stratagem.cluster.launch.messages import (
    order_from_json,
    order_to_json,
    report_from_json,
    report_to_json,
)
from stratagem.cluster.launch.task_counts import TaskCounts
from stratagem.cluster.launch.task_ending import TaskEnding

OFFER = NodeOffer(1, "host", TaskCounts(workers=1, evaluator=True), (7,))


def body_of(data):
    [body] = FrameReader(10_000).feed(data)
    return body


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7))
def test_frames_do_not_depend_on_how_the_stream_is_cut(bodies, step):
    stream = b"".join(map(frame, bodies))
    reader = FrameReader(limit=20)
    parts = [stream[i : i + step] for i in range(0, len(stream), step)]
    assert [body for part in parts for body in reader.feed(part)] == bodies


def test_announced_size_is_limited_before_anything_is_kept():
    with pytest.raises(RendezvousError, match="at most 20 bytes, got 4294967295"):
        FrameReader(limit=20).feed(b"\xff\xff\xff\xff")


@given(st.binary(max_size=200))
def test_anything_but_a_json_object_is_refused(body):
    try:
        is_object = isinstance(json.loads(body), dict)
    except ValueError:
        is_object = False
    if not is_object:
        with pytest.raises(RendezvousError):
            to_json(body)


def test_deeply_nested_json_is_refused():
    with pytest.raises(RendezvousError):
        to_json(b"[" * 100_000)


@pytest.mark.parametrize("position", [0, 31, 32, -1])
def test_changed_message_is_refused(position):
    body = bytearray(body_of(Seal(b"key", "a").seal({"x": 1})))
    body[position] ^= 1
    with pytest.raises(RendezvousError, match="not sealed"):
        Seal(b"key", "a").open(bytes(body))


def test_messages_cannot_be_reordered_or_sent_back():
    sender = Seal(b"key", "a")
    first, second = body_of(sender.seal({"x": 1})), body_of(sender.seal({"x": 2}))
    for seal, body in ((Seal(b"key", "a"), second), (Seal(b"key", "b"), first)):
        with pytest.raises(RendezvousError, match="not sealed"):
            seal.open(body)


def test_greeting_between_nodes_with_the_same_secret():
    nonce, greeting = challenge()
    mine, answer = answer_challenge("secret", body_of(greeting), node=2, num_nodes=3)
    assert b"secret" not in answer
    known = check_answer("secret", nonce, body_of(answer))
    assert (known.node, known.num_nodes) == (2, 3)
    welcome = body_of(known.seals.from_node_0.seal({"kind": "Welcome"}))
    assert mine.from_node_0.open(welcome) == {"kind": "Welcome"}


def test_answer_with_another_secret_or_to_another_challenge_is_refused():
    nonce, greeting = challenge()
    _, answer = answer_challenge("secret", body_of(greeting), 1, 2)
    with pytest.raises(RendezvousError):
        check_answer("another", nonce, body_of(answer))
    with pytest.raises(RendezvousError):
        check_answer("secret", challenge()[0], body_of(answer))


@pytest.mark.parametrize("greeting", [b"{}", b"HTTP/1.1 400", b'{"protocol": "x"}'])
def test_something_else_at_the_endpoint(greeting):
    with pytest.raises(RendezvousError):
        answer_challenge("secret", greeting, 1, 2)


REPORTS = [
    NodeJoined(OFFER),
    TaskEnded(TaskEnding(Task("worker", 3), -9, False, "ünïcode\n")),
    NodeStopped(1),
    Interrupted(15),
]
ORDERS = [
    Start(2, "id", plan_cluster([OFFER, NodeOffer(0, "h", TaskCounts(), (5,))])),
    StartAgain(Task("worker", 1), "worker 1 was killed by SIGKILL"),
    Stop(15, 2.5),
    JoinAgain(1, "worker 0 failed"),
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
    with contextlib.suppress(RendezvousError):
        report_from_json({**fields, "kind": kind})


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
