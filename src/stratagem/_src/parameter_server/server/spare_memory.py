"""``bytes_to_spare``: how much memory something may take for a while without harm to the rest."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["bytes_to_spare"]

_SHARE = 4
_LEAST = 64 << 20


def bytes_to_spare(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns a quarter of the memory that is left on this machine, and to this process' control groups.

    Other servers on the machine may ask for as much.

    Args:
        proc: Where the system tells of its memory.
        groups: Where it tells of control groups, by which containers and schedulers set limits.
    """
    left = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError):
        # What files fill for speed's sake is available, too.
        found = re.search(r"^MemAvailable: +([0-9]+) kB$", (proc / "meminfo").read_text(), re.M)
        left = [int(found[1]) << 10] if found else left
    left += _left_to_groups(proc, groups)
    return max(_LEAST, min(left) // _SHARE)


def _left_to_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yields what is left to each control group that has a limit."""
    with contextlib.suppress(OSError):
        found = re.search(r"^0::/(.*)$", (proc / "self/cgroup").read_text(), re.M)
        group = groups / (found[1] if found else "")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(groups):
                break
            with contextlib.suppress(OSError, ValueError):
                limit = int((directory / "memory.max").read_text())  # or "max"
                yield limit - int((directory / "memory.current").read_text())
