"""``experimental.rpc``: functions of one program, called from another."""

import threading

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.core.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.parameter_server.protocol.serialization import pack, unpack
from stratagem._src.parameter_server.protocol.worker_messages import (
    payload_from_message,
    payload_to_message,
)
from stratagem._src.parameter_server.rpc.rpc_server import _answer

rpc = sg.distribute.experimental.rpc


@pytest.fixture
def server():
    server = rpc.Server.create("grpc", "localhost:0")
    yield server
    server.shutdown()


@pytest.fixture
def connect(server):
    """Makes clients of the server: `connect(...)` as `rpc.Client.create("grpc", address, ...)`."""
    clients = []

    def create(**options):
        clients.append(rpc.Client.create("grpc", server.address, **options))
        return clients[-1]

    yield create
    for client in clients:
        client.close()


def test_functions_plain_and_compiled(server, connect):
    @sg.function
    def multiply(a, b):
        return a * b

    server.register("multiply", multiply)
    server.register("describe", lambda tree: {"shape": tree["x"].shape, "sum": tree["x"].sum()})
    server.start()
    client = connect()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = client.call("multiply", [sg.constant(x), sg.constant(x)])
    assert result.is_ok()
    assert result.get_error() is None
    np.testing.assert_array_equal(result.get_value(), x * x)
    assert client.call("describe", [{"x": x}]).get_value() == {"shape": (2, 3), "sum": 15}


def test_calls_do_not_wait_for_one_another(server, connect):
    meet = threading.Barrier(2, timeout=10)
    server.register("meet", meet.wait)
    server.start()
    client = connect()
    results = [client.call("meet"), client.call("meet")]
    assert sorted(result.get_value() for result in results) == [0, 1]


def test_an_exception_of_the_function(server, connect):
    def fail(x):
        raise ZeroDivisionError(f"got {x}")

    server.register("fail", fail)
    server.start()
    result = connect(name="divider").call("fail", [7])
    assert not result.is_ok()
    assert isinstance(result.get_error(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="got 7") as caught:
        result.get_value()
    assert "divider" in caught.value.__notes__[0]


def refuse_to_arrive():
    raise ZeroDivisionError("not here")


class Unreadable:
    def __reduce__(self):
        return refuse_to_arrive, ()


def test_an_answer_that_cannot_be_read_is_an_error_of_the_call(server, connect):
    server.register("make", Unreadable)
    server.start()
    result = connect(timeout_in_ms=10_000).call("make")
    assert isinstance(result.get_error(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="not here"):
        result.get_value()


def test_timeouts(server, connect):
    released = threading.Event()
    server.register("wait", lambda: released.wait(10))
    server.start()
    for call in (
        connect(timeout_in_ms=50).call("wait"),
        connect().call("wait", timeout_in_ms=50),
    ):
        with pytest.raises(DeadlineExceededError, match=r"within 0\.0"):
            call.get_value()
    released.set()
    with pytest.raises(InvalidArgumentError, match="at least 0, got -1"):
        connect(timeout_in_ms=-1)


def test_a_result_that_does_not_fit_its_specs(server, connect):
    server.register("ones", lambda: np.ones(3, np.float32))
    server.start()
    fits, other = sg.data.TensorSpec([None], "float32"), sg.data.TensorSpec([4], "float32")
    client = connect()
    assert client.call("ones", output_specs=fits).is_ok()
    with pytest.raises(InvalidArgumentError, match="must match TensorSpec"):
        client.call("ones", output_specs=other).get_value()
    with pytest.raises(InvalidArgumentError, match="structure of output_specs"):
        client.call("ones", output_specs=[fits, fits]).get_value()


def test_methods_are_registered_once_and_before_the_start(server, connect):
    server.register("one", lambda: 1)
    with pytest.raises(InvalidArgumentError, match="once, got 'one' again"):
        server.register("one", lambda: 2)
    with pytest.raises(InvalidArgumentError, match="must be a function, got int"):
        server.register("two", 2)
    server.start()
    with pytest.raises(InvalidArgumentError, match="before the server starts"):
        server.register("three", lambda: 3)
    with pytest.raises(InvalidArgumentError, match="started before"):
        server.start()
    with pytest.raises(InvalidArgumentError, match=r"one of \['one'\], got 'four'"):
        connect().call("four").get_value()


def test_who_does_not_know_the_secret_may_not_call(server, connect, monkeypatch):
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "correct horse battery staple")
    trusting = rpc.Server.create("grpc", "localhost:0")
    called = []
    trusting.register("note", called.append)
    trusting.start()
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "wrong donkey battery staple")
    client = rpc.Client.create("grpc", trusting.address)
    assert isinstance(client.call("note", [1]).get_error(), UnauthenticatedError)
    assert not called
    client.close()
    trusting.shutdown()


def test_a_server_that_is_not_there(server, connect):
    with pytest.raises(InvalidArgumentError, match="one of"):
        rpc.Client.create("http", "localhost:1")
    server.start()
    client = connect(name="calculator")
    server.shutdown()
    with pytest.raises(UnavailableError, match="calculator at localhost"):
        client.call("add").get_value()


@pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
def test_arguments_are_those_of_the_call(server, connect, size, monkeypatch):
    server.register("mean", lambda x: float(x.mean()))
    server.start()
    client = connect()
    changed, send = threading.Event(), client._transport.call

    def send_late(*args, **options):
        assert changed.wait(30)
        return send(*args, **options)

    monkeypatch.setattr(client._transport, "call", send_late)
    buffer = np.zeros(size)
    calls = []
    for number in range(3):
        buffer[:] = number
        calls.append(client.call("mean", [buffer]))
    changed.set()
    assert [call.get_value() for call in calls] == [0, 1, 2]


@pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
def test_an_answer_is_what_was_returned(size):
    buffer = np.zeros(size)
    answer = _answer(lambda: buffer, payload_to_message(pack(())))  # sent when this has returned
    buffer[:] = 1
    assert unpack(payload_from_message(answer)).max() == 0
