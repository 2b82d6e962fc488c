"""How the tasks of a cluster talk: messages over connections whose ends have proved who they are.

``Caller`` and ``Endpoint`` call and answer, one connection per concurrent call. ``connect`` and
``Listener`` give connections on which both ends speak whenever they want. Everything is encrypted and
nothing can be changed, repeated or left out on the way (docs/security.md); a peer that has not proved
itself can send a greeting of fixed size, and that is all.

It stands on plain sockets, and with encryption answers about four times as many small calls as Arrow
Flight does without (benchmarks/transport.py, which also shows what encryption costs).
"""

from stratagem._src.transport.bulk_channel import BulkChannel
from stratagem._src.transport.byte_stream import PeerGone
from stratagem._src.transport.cipher import TamperedError
from stratagem._src.transport.connecting import connect
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials, TLSFiles
from stratagem._src.transport.identity import Identity
from stratagem._src.transport.listener import Listener
from stratagem._src.transport.message import Handler, Message
from stratagem._src.transport.rpc_client import Caller
from stratagem._src.transport.rpc_server import Endpoint
from stratagem._src.transport.wire_format import Kind

__all__ = [
    "BulkChannel",
    "Caller",
    "Connection",
    "Credentials",
    "Endpoint",
    "Handler",
    "Identity",
    "Kind",
    "Listener",
    "Message",
    "PeerGone",
    "TLSFiles",
    "TamperedError",
    "connect",
]
