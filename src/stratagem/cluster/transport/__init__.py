"""How the tasks of a cluster call one another: messages over connections that prove who connects.

One connection per concurrent call, on plain sockets. On two cores it answers four to five times as
many small calls as Arrow Flight and moves large arrays faster (benchmarks/transport.py), and unlike
Flight it takes no more than a greeting from a peer that has not proved itself.
"""

from stratagem.cluster.transport.channel import Channel
from stratagem.cluster.transport.credentials import Credentials, TLSFiles
from stratagem.cluster.transport.endpoint import Endpoint
from stratagem.cluster.transport.message import Handler, Message

__all__ = ["Channel", "Credentials", "Endpoint", "Handler", "Message", "TLSFiles"]
