"""``memory_budget``: how much memory a temporary copy may use."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_budget"]

_FRACTION = 4
_MIN_BYTES = 64 << 20


def memory_budget(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns a quarter of the memory available to this process, on the machine and in its cgroups.

    The rest is for other servers on the machine, which may do the same.

    Args:
        proc: Where the proc file system is mounted.
        cgroups: Where the cgroup file system is mounted; containers and schedulers set limits there.
    """
    left = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError):
        # MemAvailable includes the page cache.
        found = re.search(r"^MemAvailable: +([0-9]+) kB$", (proc / "meminfo").read_text(), re.M)
        left = [int(found[1]) << 10] if found else left
    left += _left_in_cgroups(proc, cgroups)
    return max(_MIN_BYTES, min(left) // _FRACTION)


def _left_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yields the memory left in each cgroup that has a limit."""
    with contextlib.suppress(OSError):
        found = re.search(r"^0::/(.*)$", (proc / "self/cgroup").read_text(), re.M)
        cgroup = cgroups / (found[1] if found else "")
        for directory in (cgroup, *cgroup.parents):
            if not directory.is_relative_to(cgroups):
                break
            with contextlib.suppress(OSError, ValueError):
                limit = int((directory / "memory.max").read_text())  # or "max"
                yield limit - int((directory / "memory.current").read_text())
