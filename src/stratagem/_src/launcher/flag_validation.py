"""Validates flag values that become part of batch scripts and manifests, to prevent injection."""

from __future__ import annotations

import re

from stratagem._src.cluster.errors import LaunchError

__all__ = ["check_name", "check_one_line", "check_word"]

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NOT_IN_A_WORD = re.compile(r"[\s\"'\\#;&|<>$`]")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def check_one_line(flag: str, value: str) -> None:
    """Raises ``LaunchError`` if a value has control characters, which could end a line of a script.

    >>> from stratagem._src.launcher.flag_validation import check_one_line
    >>> check_one_line("--log-dir", "/my logs")
    """
    if _CONTROL.search(value):
        raise LaunchError(
            f"{flag} must be one line without control characters, got {value!r}. Leave them out."
        )


def check_word(flag: str, value: str) -> None:
    """Raises ``LaunchError`` if a value is not a single shell word.

    >>> from stratagem._src.launcher.flag_validation import check_word
    >>> check_word("--partition", "gpu-a100,gpu-h100")
    """
    if _CONTROL.search(value) or _NOT_IN_A_WORD.search(value):
        raise LaunchError(
            f"{flag} must be one word without quotes or other shell characters, got {value!r}."
        )


def check_name(flag: str, value: str) -> None:
    """Raises ``LaunchError`` if a value is not a valid name of a Kubernetes object.

    >>> from stratagem._src.launcher.flag_validation import check_name
    >>> check_name("--namespace", "team-a")
    """
    if not _NAME.fullmatch(value):
        raise LaunchError(
            f"{flag} must be lower-case letters, digits, hyphens and dots, got {value!r}."
        )
