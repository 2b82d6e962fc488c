"""How the tasks of a cluster talk: messages over connections whose ends have proved who they are.

``Channel`` and ``Endpoint`` call and answer, one connection per concurrent call. ``connect`` and
``Listener`` give connections on which both ends speak whenever they want. Everything is encrypted and
nothing can be changed, repeated or left out on the way (docs/security.md); a peer that has not proved
itself can send a greeting of fixed size, and that is all.

It stands on plain sockets: on two cores it answers three to four times as many small calls as Arrow
Flight and moves large arrays faster (benchmarks/transport.py).
"""

from stratagem.cluster.transport.channel import Channel
from stratagem.cluster.transport.cipher import TamperedError
from stratagem.cluster.transport.connecting import connect
from stratagem.cluster.transport.connection import Connection
from stratagem.cluster.transport.credentials import Credentials, TLSFiles
from stratagem.cluster.transport.endpoint import Endpoint
from stratagem.cluster.transport.frames import Kind
from stratagem.cluster.transport.identity import Identity
from stratagem.cluster.transport.listener import Listener
from stratagem.cluster.transport.message import Handler, Message
from stratagem.cluster.transport.stream import PeerGone

__all__ = [
    "Channel",
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
