"""``TransportServer``: the server side of RPC between tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials
from stratagem._src.transport.identity import Identity
from stratagem._src.transport.listener import Listener
from stratagem._src.transport.message import Handler, Message
from stratagem._src.transport.remote_error import exception_to_bytes
from stratagem._src.transport.wire_format import Kind

__all__ = ["TransportServer"]


class TransportServer:
    """Listens at an address and answers requests with handlers, one thread per connection.

    >>> from stratagem._src.transport import Credentials, Identity, Message
    >>> from stratagem._src.transport import TransportClient, TransportServer
    >>> credentials = Credentials(secret="correct horse battery staple")
    >>> server, client = Identity.of_task("ps", 0), Identity("coordinator")
    >>> echo = TransportServer("127.0.0.1:0", {"echo": lambda message: message}, credentials, server)
    >>> echo.start()
    >>> task = TransportClient(echo.address, credentials, wanted=server, own=client)
    >>> task.call("echo", Message(b"hello"), timeout=5).body
    b'hello'
    >>> task.close(), echo.shutdown()
    (None, None)

    Args:
        address: ``host:port``, as for ``Listener``.
        handlers: The handler of each method.
        credentials: The credentials that peers must have.
        own: The identity of this task, which peers must expect.
        peers: The hosts of the other tasks, as for ``Listener``.

    Raises:
        PermissionDeniedError: If there is neither secret nor TLS and the address is not loopback.
    """

    def __init__(
        self,
        address: str,
        handlers: Mapping[str, Handler],
        credentials: Credentials,
        own: Identity,
        *,
        peers: Iterable[str] = (),
    ) -> None:
        self._handlers = dict(handlers)
        self._listener = Listener(address, credentials, own, self._serve, peers=peers)

    @property
    def address(self) -> str:
        """The address that it listens at, with the actual port once it has started."""
        return self._listener.address

    @property
    def was_started(self) -> bool:
        """Whether it was started, also if it was shut down since."""
        return self._listener.was_started

    def start(self) -> None:
        """Starts to listen.

        Raises:
            UnavailableError: If the port is in use or cannot be bound.
            RuntimeError: If it was started before.
        """
        self._listener.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is shut down or the timeout passes; returns whether it is shut down.

        Raises:
            Exception: The error that ended it, if it was not shut down.
        """
        return self._listener.wait(timeout)

    def shutdown(self) -> None:
        """Stops listening and ends every connection; running handlers get five seconds to finish."""
        self._listener.shutdown()

    def _serve(self, connection: Connection) -> None:
        while True:
            _, method, message = connection.receive(deadline=None)
            self._answer(connection, method, message)

    def _answer(self, connection: Connection, method: str, message: Message) -> None:
        try:
            answer, kind = self._handler(method)(message), Kind.RESULT
        except BaseException as error:
            answer, kind = Message(exception_to_bytes(error)), Kind.ERROR
        try:
            connection.send(kind, "", answer, deadline=None)
        except InvalidArgumentError as error:  # arrays that cannot be sent
            connection.send(Kind.ERROR, "", Message(exception_to_bytes(error)), deadline=None)

    def _handler(self, method: str) -> Handler:
        handler = self._handlers.get(method)
        if handler is None:
            raise InvalidArgumentError(
                f"A method must be one of {sorted(self._handlers)}, got {method!r}."
            )
        return handler
