"""The exchange of the workers that this process is one of, and how their programs reach it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.combination import Combination
from stratagem._src.collective_backends.shared_memory.device_meeting import DeviceMeeting
from stratagem._src.collective_backends.shared_memory.exchanged_array import Share
from stratagem._src.collective_backends.shared_memory.local_group import ABANDONED
from stratagem._src.collective_backends.shared_memory.shared_exchange import ArrayExchange
from stratagem._src.jax_compat.host_calls import call_host, can_pass, register_host_function
from stratagem._src.telemetry.measurement.recorder import span

__all__ = [
    "can_exchange",
    "current_number",
    "exchange_in_program",
    "num_sharing_processes",
    "number_of_trace",
    "pass_after",
    "token_after",
    "trace_body",
    "use_exchange",
]

_EXCHANGE, _PASS, _TOKEN = "stratagem_exchange", "stratagem_pass", "stratagem_token"
_TOKEN_SHAPE = jax.ShapeDtypeStruct((1,), np.int32)

_meeting: DeviceMeeting | None = None

_number = 0
"""Of the exchange: a program of workers that have parted since may still run, and come to it late."""


class _Trace(threading.local):
    number: Any = None


_trace = _Trace()


def current_number() -> np.ndarray[Any, Any]:
    """Returns the number of the exchange, as an array that programs can take."""
    return np.array([_number], np.int32)


@contextlib.contextmanager
def number_of_trace(number: Any) -> Iterator[None]:
    """Has programs that are traced meanwhile take the number of their exchange from an argument."""
    before, _trace.number = _trace.number, number
    try:
        yield
    finally:
        _trace.number = before


def trace_body(run: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """Returns the jaxpr of a loop's or branch's body, with the number of the exchange as a constant.

    A body's jaxpr is closed: it cannot capture the number that the program around it takes as an argument.
    """
    with number_of_trace(None):
        return jax.make_jaxpr(run)(*avals)


def use_exchange(exchange: ArrayExchange | None) -> None:
    """Sets the exchange of this process, before programs are made that use it; closes the one before."""
    global _meeting, _number
    if _meeting is not None:
        _meeting.exchange.close()
    _meeting = None if exchange is None else DeviceMeeting(exchange)
    _number += 1
    if exchange is not None:
        _register()


def num_sharing_processes() -> int:
    """Returns how many processes share memory with this one, itself included; 0 if it has no exchange."""
    return 0 if _meeting is None else _meeting.exchange.num_processes


def can_exchange(combination: Combination, dtype: Any) -> bool:
    """Returns whether arrays can be exchanged so: truth values and complex numbers are only gathered."""
    if jnp.issubdtype(dtype, jax.dtypes.extended) or not can_pass(dtype):
        return False
    is_real = not jnp.issubdtype(dtype, jnp.complexfloating) and np.dtype(dtype) != np.bool_
    return is_real or combination is Combination.GATHER


def exchange_in_program(
    combination: Combination, arrays: Sequence[Any], token: Any, device: Any, num_devices: int
) -> tuple[list[Any], Any]:
    """Exchanges arrays inside a program that every worker runs on as many devices.

    Args:
        combination: What becomes of them.
        arrays: What this device brings.
        token: Of what happens before; see ``token_after``.
        device: The number of this device among those of its worker.
        num_devices: How many these are.

    Returns:
        What becomes of each array, with a dimension for the devices of all workers in front if they are
        gathered, and divided along its first dimension if its sum is scattered; and the token of what
        happens after.
    """
    count = num_sharing_processes() * num_devices

    def result(array: Any) -> jax.ShapeDtypeStruct:
        shape = array.shape
        if combination is Combination.GATHER:
            shape = (count, *shape)
        elif combination is Combination.SCATTER:
            shape = (shape[0] // count, *shape[1:])
        return jax.ShapeDtypeStruct(shape, array.dtype)

    shapes = [result(array) for array in arrays]
    how = np.array([combination, num_devices], np.int32)
    number = current_number() if _trace.number is None else _trace.number
    place = jnp.reshape(device, (1,)).astype(np.int32)
    *results, after = call_host(
        _EXCHANGE, [*shapes, _TOKEN_SHAPE], *arrays, how, number, place, token
    )
    return results, after


def pass_after(value: Any, token: Any) -> Any:
    """Returns a value that is not there before the token is."""
    shape = jax.ShapeDtypeStruct(value.shape, value.dtype)
    return call_host(_PASS, [shape], value, token, in_place={0: 0})[0]


def token_after(*values: Any) -> Any:
    """Returns a token that is not there before the values are.

    XLA runs what does not depend on one another in any order, and in another one in each process. Whoever
    waits for another process needs a token, so that all wait for the same.
    """
    return call_host(_TOKEN, [_TOKEN_SHAPE], *values)[0]


@functools.cache
def _register() -> None:
    register_host_function(_EXCHANGE, _run_exchange)
    register_host_function(_PASS, _run_pass)
    register_host_function(_TOKEN, _run_token)


def _run_exchange(
    operands: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]
) -> str | None:
    *arrays, how, number, place, _ = operands
    *exchanged, token = results
    token[:] = 0
    kind, num_devices = how.tolist()
    meeting = _meeting
    if meeting is None or int(number[0]) != _number:
        return ABANDONED
    combination = Combination(kind)
    with span(f"exchange {combination.name}", "collective", arrays=len(arrays)):
        return meeting.take_part(combination, int(place[0]), num_devices, Share(arrays, exchanged))


def _run_pass(operands: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]) -> None:
    [value, _], [result] = operands, results
    if value.ctypes.data != result.ctypes.data:
        result[:] = value


def _run_token(operands: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]) -> None:
    results[0][:] = 0
