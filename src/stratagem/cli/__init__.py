"""The command line: ``stratagem run`` and ``stratagem doctor``."""

from stratagem.cli.main import main

__all__ = ["main"]
