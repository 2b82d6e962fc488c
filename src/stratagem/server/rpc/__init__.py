"""Calls between programs: functions of one, by name, from another."""

from stratagem.server.rpc.client import Client
from stratagem.server.rpc.server import Server
from stratagem.server.rpc.status_or_result import StatusOrResult

__all__ = ["Client", "Server", "StatusOrResult"]
