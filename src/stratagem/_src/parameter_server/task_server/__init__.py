"""``Server``: makes a process a task of a cluster."""

from stratagem._src.parameter_server.task_server.server import Server

__all__ = ["Server"]
