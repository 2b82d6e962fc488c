"""Remote procedure calls: a server registers functions, a client calls them by name."""

from stratagem._src.parameter_server.rpc import Client, Server, StatusOrResult

__all__ = ["Client", "Server", "StatusOrResult"]
