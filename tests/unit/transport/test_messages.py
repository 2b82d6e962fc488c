"""What is sent arrives, whatever its type and shape."""

import itertools
import traceback

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.transport import (
    Credentials,
    Identity,
    Message,
    TransportClient,
    TransportServer,
)
from stratagem._src.transport.remote_error import exception_from_bytes, exception_to_bytes

DTYPES = [
    np.bool_,
    np.int8,
    np.uint64,
    np.float16,
    np.float32,
    np.dtype(">f4"),
    np.complex128,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
]
SHAPES = [(), (0,), (1,), (3, 0, 2), (2, 3), (1000, 7)]


@pytest.fixture
def caller():
    credentials = Credentials(secret="correct horse battery staple")
    own = Identity.of_task("ps", 0)
    endpoint = TransportServer("127.0.0.1:0", {"echo": lambda message: message}, credentials, own)
    endpoint.start()
    caller = TransportClient(endpoint.address, credentials, wanted=own, own=Identity("coordinator"))
    yield caller
    caller.close()
    endpoint.shutdown()


def echo(caller, *arrays, body=b""):
    answer = caller.call("echo", Message(body, arrays), timeout=20)
    assert answer.body == body
    return answer.arrays


def assert_same(sent, received):
    assert len(sent) == len(received)
    for left, right in zip(sent, received, strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert left.tobytes() == right.tobytes()


def test_every_dtype_and_shape_in_one_message(caller):
    arrays = [
        np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        for dtype, shape in itertools.product(DTYPES, SHAPES)
    ]
    assert_same(arrays, echo(caller, *arrays))


def test_strings_and_dates_of_fixed_size(caller):
    arrays = [np.array(["ab", "c"]), np.array([b"xyz"]), np.array("2026-01-31", "datetime64[D]")]
    assert_same(arrays, echo(caller, *arrays))


def test_arrays_that_do_not_lie_in_order(caller):
    table = np.arange(24).reshape(4, 6)
    arrays = [table.T, table[::2, ::-1], np.asfortranarray(table), np.broadcast_to(1.5, (3, 4))]
    assert_same([np.ascontiguousarray(array) for array in arrays], echo(caller, *arrays))


def test_received_arrays_are_aligned_and_writable(caller):
    arrays = echo(caller, np.zeros(3, np.int8), np.zeros(5), np.zeros(200_000))
    for array in arrays:
        assert array.ctypes.data % 64 == 0
        array[...] = 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.sampled_from([0, 1, 65_000, 65_535, 65_536, 65_537, 300_000]),
    sizes=st.lists(st.sampled_from([0, 1, 63, 64, 65, 65_520, 65_536, 1_000_003]), max_size=4),
)
def test_sizes_around_those_of_buffers(caller, body, sizes):
    arrays = [np.random.default_rng(size).integers(0, 255, size, np.uint8) for size in sizes]
    assert_same(arrays, echo(caller, *arrays, body=bytes(body)))


def test_more_arrays_than_one_system_call_takes(caller):
    arrays = [np.full(5000, index) for index in range(200)]
    assert_same(arrays, echo(caller, *arrays))


def test_objects_cannot_travel_as_arrays(caller):
    with pytest.raises(InvalidArgumentError, match="got dtype object"):
        echo(caller, np.array([object()]))
    assert echo(caller, np.arange(3))[0].tolist() == [0, 1, 2]


def test_an_answer_that_cannot_travel_is_an_error_of_the_method(listen, connect):
    answer = Message(arrays=(np.array([object()]),))
    caller = connect(listen({"objects": lambda message: answer, "echo": lambda m: m}))
    with pytest.raises(InvalidArgumentError, match="got dtype object"):
        caller.call("objects", Message(), timeout=10)
    assert caller.call("echo", Message(b"still there"), timeout=10).body == b"still there"


def test_what_another_task_raised_does_not_command_the_terminal():
    class Unpicklable(Exception):
        def __reduce__(self):
            raise TypeError("it cannot travel")

    try:
        raise Unpicklable("\x1b]0;owned\x07")
    except Unpicklable as error:
        data = exception_to_bytes(error)
    arrived = exception_from_bytes(data, "worker 0")
    shown = "".join(traceback.format_exception(arrived))
    assert "\x1b" not in shown
    assert r"\x1b]0;owned\x07" in shown
