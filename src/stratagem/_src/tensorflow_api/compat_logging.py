"""``tf.compat.v1.logging``: the functions of the library's logger."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = [
    "DEBUG",
    "ERROR",
    "FATAL",
    "INFO",
    "WARN",
    "debug",
    "error",
    "fatal",
    "get_verbosity",
    "info",
    "log",
    "set_verbosity",
    "warn",
    "warning",
]

DEBUG, INFO, WARN, ERROR, FATAL = (
    logging.DEBUG,
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.CRITICAL,
)

_logger = logging.getLogger("stratagem")
debug: Callable[..., None] = _logger.debug
info: Callable[..., None] = _logger.info
warn: Callable[..., None] = _logger.warning
warning: Callable[..., None] = _logger.warning
error: Callable[..., None] = _logger.error
fatal: Callable[..., None] = _logger.critical
log: Callable[..., None] = _logger.log
set_verbosity: Callable[[int | str], None] = _logger.setLevel


def get_verbosity() -> int:
    """Returns the lowest level of messages that are shown.

    >>> get_verbosity() in (DEBUG, INFO, WARN, ERROR, FATAL)
    True
    """
    return _logger.getEffectiveLevel()
