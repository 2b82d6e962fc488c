"""Collectives inside compiled programs: XLA's foreign function interface (FFI) calls our backend."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.device_rendezvous import DeviceRendezvous
from stratagem._src.collective_backends.shared_memory.local_group import ABORTED
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import CollectiveBackend
from stratagem._src.collective_backends.shared_memory.slots import DeviceBuffers
from stratagem._src.core.types import ArraySpec, DTypeLike, Tensor
from stratagem._src.jax_compat.host_calls import call_host, can_pass, register_host_function
from stratagem._src.telemetry.measurement.recorder import span

__all__ = [
    "collective_in_program",
    "current_generation",
    "is_supported",
    "num_backend_processes",
    "pass_after",
    "token_after",
    "trace_body",
    "trace_with_generation",
    "use_collective_backend",
]

_COLLECTIVE, _PASS, _TOKEN = "stratagem_exchange", "stratagem_pass", "stratagem_token"
_TOKEN_SHAPE = jax.ShapeDtypeStruct((1,), np.int32)

_rendezvous: DeviceRendezvous | None = None

_generation = 0
"""Counts the backends: a program of an earlier generation of workers may still run, and call one late."""


class _CurrentTrace(threading.local):
    generation: Any = None


_trace = _CurrentTrace()


def current_generation() -> np.ndarray[Any, Any]:
    """Returns the generation of the backend, as an array that programs can take."""
    return np.array([_generation], np.int32)


@contextlib.contextmanager
def trace_with_generation(generation: Tensor) -> Iterator[None]:
    """Makes programs that are traced in the block take their generation from an argument."""
    before, _trace.generation = _trace.generation, generation
    try:
        yield
    finally:
        _trace.generation = before


def trace_body(run: Callable[..., Any], avals: Sequence[ArraySpec]) -> Any:
    """Returns the jaxpr of the body of a loop or branch, with the generation as a constant.

    The jaxpr of a body is closed: it cannot capture the generation that the program around it takes as an
    argument.
    """
    with trace_with_generation(None):
        return jax.make_jaxpr(run)(*avals)


def use_collective_backend(backend: CollectiveBackend | None) -> None:
    """Sets the backend of this process and closes the previous one. Call it before programs are traced."""
    global _rendezvous, _generation
    if _rendezvous is not None:
        _rendezvous.backend.close()
    _rendezvous = None if backend is None else DeviceRendezvous(backend)
    _generation += 1
    if backend is not None:
        _register()


def num_backend_processes() -> int:
    """Returns the number of processes of the backend, with this one; 0 if there is no backend."""
    return 0 if _rendezvous is None else _rendezvous.backend.num_processes


def is_supported(op: CollectiveOp, dtype: DTypeLike) -> bool:
    """Returns whether backends support a dtype. Booleans and complex numbers can only be gathered."""
    if jnp.issubdtype(dtype, jax.dtypes.extended) or not can_pass(dtype):
        return False
    is_real = not jnp.issubdtype(dtype, jnp.complexfloating) and np.dtype(dtype) != np.bool_
    return is_real or op is CollectiveOp.GATHER


def collective_in_program(
    op: CollectiveOp, arrays: Sequence[Tensor], token: Tensor, device: Tensor, num_devices: int
) -> tuple[list[Any], Any]:
    """Runs a collective inside a program that every worker runs on the same number of devices.

    Args:
        op: The collective.
        arrays: The operands of this device.
        token: The token of the previous collective; see ``token_after``.
        device: The index of this device among those of its worker.
        num_devices: The number of devices of each worker.

    Returns:
        The result for each array, and the token of this collective. Gathered arrays have a new first
        dimension for the devices of all workers; scattered sums are sharded along their first dimension.
    """
    count = num_backend_processes() * num_devices

    def result(array: Tensor) -> jax.ShapeDtypeStruct:
        shape = array.shape
        if op is CollectiveOp.GATHER:
            shape = (count, *shape)
        elif op is CollectiveOp.SCATTER:
            shape = (shape[0] // count, *shape[1:])
        return jax.ShapeDtypeStruct(shape, array.dtype)

    shapes = [result(array) for array in arrays]
    how = np.array([op, num_devices], np.int32)
    # As an operand, a compiled program outlives its generation: survivors of a lost worker need not compile
    # again. As a constant (in bodies of loops) it has to be compiled again.
    generation = current_generation() if _trace.generation is None else _trace.generation
    # An operand, not part of the program: all devices run the same one.
    index = jnp.reshape(device, (1,)).astype(np.int32)
    *results, after = call_host(
        _COLLECTIVE, [*shapes, _TOKEN_SHAPE], *arrays, how, generation, index, token
    )
    return results, after


def pass_after(value: Tensor, token: Tensor) -> Any:
    """Returns a value that becomes available only after the token."""
    shape = jax.ShapeDtypeStruct(value.shape, value.dtype)
    return call_host(_PASS, [shape], value, token, in_place={0: 0})[0]


def token_after(*values: Tensor) -> Any:
    """Returns a token that becomes available only after the values.

    XLA runs independent operations in any order, and in a different one in each process. Every operation
    that waits for another process needs a token, so that all processes wait in the same order.
    """
    return call_host(_TOKEN, [_TOKEN_SHAPE], *values)[0]


@functools.cache
def _register() -> None:
    register_host_function(_COLLECTIVE, _run_collective)
    register_host_function(_PASS, _run_pass)
    register_host_function(_TOKEN, _run_token)


def _run_collective(
    operands: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]
) -> str | None:
    *arrays, how, generation, index, _ = operands
    *filled, token = results
    token[:] = 0
    kind, num_devices = how.tolist()
    # XLA calls this in threads of its own, once for each device of the process.
    rendezvous = _rendezvous
    # The program was launched before workers were lost and the others formed a new job. Its collectives
    # must not exchange data with those of the new one: the call ends with an error instead.
    if rendezvous is None or int(generation[0]) != _generation:
        return ABORTED
    op = CollectiveOp(kind)
    with span(f"exchange {op.name}", "collective", arrays=len(arrays)):
        buffers = DeviceBuffers(arrays, filled)
        return rendezvous.participate(op, int(index[0]), num_devices, buffers)


def _run_pass(operands: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]) -> None:
    [value, _], [result] = operands, results
    # XLA usually passes the same buffer, as asked for by `in_place`, but does not promise it.
    if value.ctypes.data != result.ctypes.data:
        result[:] = value


def _run_token(operands: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]) -> None:
    results[0][:] = 0
