"""How much memory this process has."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Returns how much memory of the machine this process occupies, where the system tells.

    >>> from stratagem._src.telemetry.measurement.memory import resident_bytes
    >>> (resident_bytes() or 2**20) >= 2**20
    True
    """
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
