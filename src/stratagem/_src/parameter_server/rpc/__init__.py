"""Calls between programs: functions of one, by name, from another."""

from stratagem._src.parameter_server.rpc.rpc_client import RpcClient
from stratagem._src.parameter_server.rpc.rpc_server import RpcServer
from stratagem._src.parameter_server.rpc.status_or_result import StatusOrResult

__all__ = ["RpcClient", "RpcServer", "StatusOrResult"]
