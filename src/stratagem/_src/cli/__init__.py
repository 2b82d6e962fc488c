"""The command line: ``stratagem run``, ``top``, ``timeline``, ``doctor`` and ``island-server``."""

from stratagem._src.cli.main import main

__all__ = ["main"]
