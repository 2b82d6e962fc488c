"""``boot_id``: identifies the machine."""

from __future__ import annotations

from pathlib import Path

__all__ = ["boot_id"]

_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Returns the kernel's boot id, unique per machine and boot; empty if the system has none."""
    try:
        return _FILE.read_text().strip()
    except OSError:
        return ""
