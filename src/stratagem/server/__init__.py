"""What a task of a cluster runs so that others can reach it."""

from stratagem.server.server import Server

__all__ = ["Server"]
