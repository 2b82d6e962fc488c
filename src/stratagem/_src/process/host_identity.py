"""``boot_id``: what processes of one machine have in common."""

from __future__ import annotations

from pathlib import Path

__all__ = ["boot_id"]

_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Returns what tells machines, and their starts, apart; empty where the system does not tell."""
    try:
        return _FILE.read_text().strip()
    except OSError:
        return ""
