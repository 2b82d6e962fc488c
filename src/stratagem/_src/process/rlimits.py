"""``raise_open_file_limit``: raises RLIMIT_NOFILE for servers with many connections."""

from __future__ import annotations

import logging
import resource

__all__ = ["raise_open_file_limit"]

_log = logging.getLogger("stratagem")
_OTHER_FILES = 128


def raise_open_file_limit(num_connections: int) -> None:
    """Raises the soft limit of open files for ``num_connections``; warns if the hard limit is too low.

    The default soft limit of a process is often 1,024, far below its hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _log.warning(
            "This process needs %d connections, but may open only %d files, so some connections may fail. "
            "Raise the limit of open files (ulimit -Hn).",
            num_connections,
            allowed,
        )
