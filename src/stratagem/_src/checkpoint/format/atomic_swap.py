"""``exchange_names``: two directories change places at one moment, where the system can do that."""

from __future__ import annotations

import contextlib
import ctypes
import os
import uuid
from pathlib import Path

__all__ = ["exchange_names"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange_names(new: Path, old: Path) -> None:
    """Gives ``new`` the name of ``old``, and ``old`` that of ``new``.

    Where the system cannot exchange names there is a moment without either of them.
    """
    with contextlib.suppress(OSError, AttributeError):
        _exchange(new, old)
        return
    aside = new.with_name(f"{new.name}.{uuid.uuid4().hex}")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _exchange(new: Path, old: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(new.absolute()), os.fsencode(old.absolute())
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
