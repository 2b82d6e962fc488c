"""``stratagem doctor``."""

from __future__ import annotations

from typing import Any


def add_command(commands: Any) -> None:
    """Adds ``doctor`` to the commands."""
