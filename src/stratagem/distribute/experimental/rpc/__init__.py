"""Calls between programs: functions of one, by name, from another."""

from stratagem._src.rpc import Client, Server, StatusOrResult

__all__ = ["Client", "Server", "StatusOrResult"]
