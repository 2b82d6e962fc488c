"""``notebook_widgets``: finds out whether the process is a notebook kernel that shows widgets."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["notebook_widgets"]


def notebook_widgets() -> Any | None:
    """Returns ``ipywidgets`` in the kernel of a notebook that has it installed, otherwise ``None``.

    >>> from stratagem._src.process.notebook import notebook_widgets
    >>> print(notebook_widgets())
    None
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # a program, or IPython in a terminal
        return None
    try:
        return importlib.import_module("ipywidgets")
    except ImportError:
        return None
