"""The network transport of a cluster: authenticated, encrypted messages between tasks.

``TransportClient`` and ``TransportServer`` are the two sides of RPC, with one connection per concurrent
call. ``connect`` and ``Listener`` give bidirectional connections on which both ends send at any time. All
data is encrypted and protected against modification, replay and omission (docs/security.md). An
unauthenticated peer can only send a handshake of fixed size.

It uses plain sockets. With encryption it handles about four times as many small calls per second as Arrow
Flight without (benchmarks/transport.py, which also measures the cost of encryption).
"""

from stratagem._src.transport.bulk_channel import BulkChannel
from stratagem._src.transport.byte_stream import PeerDisconnectedError
from stratagem._src.transport.cipher import TamperedError
from stratagem._src.transport.client import TransportClient
from stratagem._src.transport.connecting import connect
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials, TLSFiles
from stratagem._src.transport.identity import Identity
from stratagem._src.transport.listener import Listener
from stratagem._src.transport.message import Handler, Message
from stratagem._src.transport.server import TransportServer
from stratagem._src.transport.wire_format import Kind

__all__ = [
    "BulkChannel",
    "Connection",
    "Credentials",
    "Handler",
    "Identity",
    "Kind",
    "Listener",
    "Message",
    "PeerDisconnectedError",
    "TLSFiles",
    "TamperedError",
    "TransportClient",
    "TransportServer",
    "connect",
]
