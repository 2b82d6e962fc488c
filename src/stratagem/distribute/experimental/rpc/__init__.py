"""Calls between programs: functions of one, by name, from another."""

from stratagem.server.rpc import Client, Server, StatusOrResult

__all__ = ["Client", "Server", "StatusOrResult"]
