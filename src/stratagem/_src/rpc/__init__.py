"""Calls between programs: functions of one, by name, from another."""

from stratagem._src.rpc.rpc_client import RpcClient
from stratagem._src.rpc.rpc_server import RpcServer
from stratagem._src.rpc.status_or_result import StatusOrResult

__all__ = ["RpcClient", "RpcServer", "StatusOrResult"]
