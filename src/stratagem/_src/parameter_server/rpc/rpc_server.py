"""``rpc.Server``: functions that other programs call by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.protocol.shipping import pack, unpack
from stratagem._src.parameter_server.protocol.worker_messages import read_parcel, written_parcel
from stratagem._src.parameter_server.task_server.protocol_credentials import credentials_for
from stratagem._src.transport import Credentials, Endpoint, Handler, Identity, Message

__all__ = ["RPC_SERVER", "RpcServer"]

RPC_SERVER = Identity("rpc-server")


class RpcServer:
    """Answers calls of registered functions, several at the same time.

    Who may call is decided as for ``distribute.Server``: by the cluster's secret or certificates.

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

    Differs from tf.distribute: plain functions are welcome beside ``stratagem.function``; arguments
    and results may be anything that can be pickled; ``address`` and ``shutdown`` exist.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials
        self._handlers: dict[str, Handler] = {}
        self._endpoint: Endpoint | None = None

    @staticmethod
    def create(rpc_layer: str, address: str) -> RpcServer:
        """Returns a server that will listen at an address, ``host:port``; port 0 chooses one.

        Raises:
            InvalidArgumentError: If ``rpc_layer`` is neither ``"grpc"`` nor ``"grpc+tls"``.
        """
        return RpcServer(address, credentials_for(rpc_layer))

    @property
    def address(self) -> str:
        """Where it listens, with the real port once it has started."""
        return self._address if self._endpoint is None else self._endpoint.address

    def register(self, method_name: str, func: Callable[..., Any]) -> None:
        """Lets others call a function by a name.

        Raises:
            InvalidArgumentError: If the name is taken, the function cannot be called, or the server
                has started.
        """
        if self._endpoint is not None:
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
        """Begins to answer.

        Raises:
            InvalidArgumentError: If it was started before.
            UnavailableError: If the port is in use.
        """
        if self._endpoint is not None:
            raise InvalidArgumentError(
                f"A server must be started once, but the one at {self.address} was started before."
            )
        endpoint = Endpoint(self._address, self._handlers, self._credentials, RPC_SERVER)
        endpoint.start()
        self._endpoint = endpoint

    def shutdown(self) -> None:
        """Stops answering."""
        if self._endpoint is not None:
            self._endpoint.shutdown()


def _answer(func: Callable[..., Any], message: Message) -> Message:
    args = unpack(read_parcel(message))
    return written_parcel(pack(func(*args)))
