"""Remote procedure calls: a server registers functions, a client calls them by name."""

from stratagem._src.parameter_server.rpc.rpc_client import Client
from stratagem._src.parameter_server.rpc.rpc_server import Server
from stratagem._src.parameter_server.rpc.status_or_result import StatusOrResult

__all__ = ["Client", "Server", "StatusOrResult"]
