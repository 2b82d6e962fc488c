"""``rpc.Client``: calls functions of another program by name."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.parameter_server.protocol.serialization import pack, unpack
from stratagem._src.parameter_server.protocol.worker_messages import (
    payload_from_message,
    payload_to_message,
)
from stratagem._src.parameter_server.rpc.rpc_server import RPC_SERVER
from stratagem._src.parameter_server.rpc.status_or_result import StatusOrResult
from stratagem._src.parameter_server.task_server.protocol_credentials import credentials_for
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials, Identity, TransportClient

__all__ = ["Client"]

_DEFAULT_TIMEOUT_SECONDS = 600.0
_OWN = Identity("rpc-client")


class Client:
    """Calls the functions that a ``rpc.Server`` has registered.

    Differs from tf.distribute: without a timeout, a call times out after ten minutes; ``close`` exists.
    """

    def __init__(self, address: str, credentials: Credentials, name: str, seconds: float) -> None:
        self._transport = TransportClient(
            address, credentials, wanted=RPC_SERVER, own=_OWN, name=name
        )
        self._seconds = seconds
        self._background = Background(f"the client of {address}")

    @staticmethod
    def create(rpc_layer: str, address: str, name: str = "", timeout_in_ms: int = 0) -> Client:
        """Returns a client of the server at an address. It connects on the first call.

        Args:
            rpc_layer: ``"grpc"`` or ``"grpc+tls"``.
            address: ``host:port``.
            name: The server's name in errors.
            timeout_in_ms: Default timeout of a call; 0 means ten minutes.
        """
        seconds = _to_seconds(timeout_in_ms) or _DEFAULT_TIMEOUT_SECONDS
        return Client(address, credentials_for(rpc_layer), name, seconds)

    def call(
        self,
        method_name: str,
        args: Sequence[Any] | None = None,
        output_specs: PyTree = None,
        timeout_in_ms: int = 0,
    ) -> StatusOrResult:
        """Calls a function and returns a future of its result, without waiting for it.

        Args:
            method_name: The name under which the function is registered.
            args: Its arguments.
            output_specs: A nest of ``TensorSpec`` that the result must match, if given.
            timeout_in_ms: Timeout of the call; 0 means the client's timeout.
        """
        seconds = _to_seconds(timeout_in_ms) or self._seconds
        message = payload_to_message(pack(tuple(args or ())))
        outcome: Future[Any] = Future()

        def run() -> None:
            try:
                answer = self._transport.call(method_name, message, timeout=seconds)
                result = unpack(payload_from_message(answer))
                _check(result, output_specs)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self._background.start(run, name=f"rpc-{method_name}")
        return StatusOrResult(outcome)

    def close(self) -> None:
        """Closes the connections; pending calls fail with ``UnavailableError``."""
        self._transport.close()


def _to_seconds(milliseconds: int) -> float:
    if milliseconds < 0:
        raise InvalidArgumentError(f"timeout_in_ms must be at least 0, got {milliseconds}.")
    return milliseconds / 1000


def _check(result: PyTree, specs: PyTree) -> None:
    if specs is None:
        return

    def is_spec(node: PyTree) -> bool:
        return isinstance(node, TensorSpec)

    expected, structure = jax.tree.flatten(specs, is_leaf=is_spec)
    received: Any = jax.tree.structure(result)
    if received != structure:
        raise InvalidArgumentError(
            f"The result must have the structure of output_specs, {structure}, got {received}."
        )
    for spec, leaf in zip(expected, jax.tree.leaves(result), strict=True):
        if not hasattr(leaf, "dtype") or not spec.is_compatible_with(leaf):
            raise InvalidArgumentError(f"The result must match {spec}, got {jax.typeof(leaf)}.")
