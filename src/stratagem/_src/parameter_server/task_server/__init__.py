"""What a task of a cluster runs so that others can reach it."""

from stratagem._src.parameter_server.task_server.server import Server

__all__ = ["Server"]
