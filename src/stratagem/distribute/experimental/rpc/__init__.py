"""Calls between programs: functions of one, by name, from another."""

from stratagem._src.parameter_server.rpc import RpcClient as Client
from stratagem._src.parameter_server.rpc import RpcServer as Server
from stratagem._src.parameter_server.rpc import StatusOrResult

__all__ = ["Client", "Server", "StatusOrResult"]
