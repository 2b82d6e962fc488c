"""Calls between programs: functions of one, by name, from another."""

from stratagem._src.rpc.client import Client
from stratagem._src.rpc.server import Server
from stratagem._src.rpc.status_or_result import StatusOrResult

__all__ = ["Client", "Server", "StatusOrResult"]
