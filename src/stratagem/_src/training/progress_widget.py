"""``ProgressWidget``: a progress bar in a notebook."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["ProgressWidget"]


class ProgressWidget:
    """Shows a bar with a text to its right, below the cell that runs.

    Args:
        widgets: The module ``ipywidgets``.
        total: The number of steps, if known.
        description: The text to the left of the bar.
    """

    def __init__(self, widgets: Any, total: int | None, description: str = "") -> None:
        self._total = total
        # Without a total the bar is full, and says by its colour that it does not measure anything.
        self._bar = widgets.IntProgress(min=0, max=total or 1, bar_style="" if total else "info")
        self._bar.value = 0 if total else 1
        self._text = widgets.Label()
        importlib.import_module("IPython.display").display(
            widgets.HBox([widgets.Label(description), self._bar, self._text])
        )

    def show(self, count: int, text: str) -> None:
        """Shows that ``count`` steps are done, with a text."""
        if self._total:
            self._bar.value = count
        self._text.value = text

    def end(self, count: int) -> None:
        """Colours the bar: green if all steps are done, otherwise yellow."""
        if self._total:
            self._bar.bar_style = "success" if count >= self._total else "warning"
