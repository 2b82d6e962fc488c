"""``allow_open_files``: many connections need many open files."""

from __future__ import annotations

import logging
import resource

__all__ = ["allow_open_files"]

_log = logging.getLogger("stratagem")
_FILES_OF_ITS_OWN = 128


def allow_open_files(num_connections: int) -> None:
    """Lets this process hold so many connections, if its system does; a warning says if it does not.

    Systems give a process a limit that is lower than the one it may ask for, often 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + _FILES_OF_ITS_OWN
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _log.warning(
            "This process is to hold %d connections, but may open only %d files: not everybody may get "
            "through. Raise the limit of open files (ulimit -Hn).",
            num_connections,
            allowed,
        )
