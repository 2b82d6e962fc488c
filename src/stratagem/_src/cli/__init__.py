"""The command line: ``stratagem run`` and ``stratagem doctor``."""

from stratagem._src.cli.main import main

__all__ = ["main"]
