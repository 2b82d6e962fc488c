"""``rpc.Server``: functions that other programs call by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.protocol.serialization import pack, unpack
from stratagem._src.parameter_server.protocol.worker_messages import (
    payload_from_message,
    payload_to_message,
)
from stratagem._src.parameter_server.task_server.protocol_credentials import credentials_for
from stratagem._src.transport import Credentials, Handler, Identity, Message, TransportServer

__all__ = ["RPC_SERVER", "Server"]

RPC_SERVER = Identity("rpc-server")


class Server:
    """Serves calls of registered functions, several of them concurrently.

    Clients authenticate as for ``distribute.Server``: with the cluster's secret or certificates.

    >>> import stratagem as sg
    >>> rpc = sg.distribute.experimental.rpc
    >>> server = rpc.Server.create("grpc", "localhost:0")
    >>> server.register("multiply", lambda a, b: a * b)
    >>> server.start()
    >>> client = rpc.Client.create("grpc", server.address)
    >>> client.call("multiply", [3, 4]).get_value()
    12
    >>> client.close(), server.shutdown()
    (None, None)

    Differs from tf.distribute: functions may be plain as well as ``stratagem.function``; arguments and
    results may be any picklable objects; ``address`` and ``shutdown`` exist.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials
        self._handlers: dict[str, Handler] = {}
        self._transport: TransportServer | None = None

    @staticmethod
    def create(rpc_layer: str, address: str) -> Server:
        """Returns a server that will listen at an address, ``host:port``; port 0 selects a free port.

        Raises:
            InvalidArgumentError: If ``rpc_layer`` is neither ``"grpc"`` nor ``"grpc+tls"``.
        """
        return Server(address, credentials_for(rpc_layer))

    @property
    def address(self) -> str:
        """The address it listens at, with the actual port once it has started."""
        return self._address if self._transport is None else self._transport.address

    def register(self, method_name: str, func: Callable[..., Any]) -> None:
        """Registers a function under a name.

        Raises:
            InvalidArgumentError: If the name is taken, the function cannot be called, or the server
                has started.
        """
        if self._transport is not None:
            raise InvalidArgumentError(
                f"Methods must be registered before the server starts, got {method_name!r} after."
            )
        if method_name in self._handlers:
            raise InvalidArgumentError(
                f"A method must be registered once, got {method_name!r} again."
            )
        if not callable(func):
            raise InvalidArgumentError(f"func must be a function, got {type(func).__name__}.")
        self._handlers[method_name] = lambda message: _answer(func, message)

    def start(self) -> None:
        """Starts serving.

        Raises:
            InvalidArgumentError: If it was started before.
            UnavailableError: If the port is in use.
        """
        if self._transport is not None:
            raise InvalidArgumentError(
                f"A server must be started once, but the one at {self.address} was started before."
            )
        transport = TransportServer(self._address, self._handlers, self._credentials, RPC_SERVER)
        transport.start()
        self._transport = transport

    def shutdown(self) -> None:
        """Stops serving."""
        if self._transport is not None:
            self._transport.shutdown()


def _answer(func: Callable[..., Any], message: Message) -> Message:
    args = unpack(payload_from_message(message))
    return payload_to_message(pack(func(*args)))
