"""``tf.compat.v1.logging``: functions of the library's logger."""

from __future__ import annotations

import logging

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
debug = _logger.debug
info = _logger.info
warn = _logger.warning
warning = _logger.warning
error = _logger.error
fatal = _logger.critical
log = _logger.log
set_verbosity = _logger.setLevel


def get_verbosity() -> int:
    """Returns the level from which on messages are shown.

    >>> get_verbosity() in (DEBUG, INFO, WARN, ERROR, FATAL)
    True
    """
    return _logger.getEffectiveLevel()
