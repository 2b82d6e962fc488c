"""The secret that the processes of one user on one machine share, in a file that only this user can read.

Every account on the machine can connect to loopback addresses. Only a process that can read the file
belongs to this user, or to root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from stratagem._src.core.errors import PermissionDeniedError
from stratagem._src.process.private_files import make_private_directory
from stratagem._src.transport.secret import FILE_VARIABLE, SECRET_VARIABLE, new_secret

__all__ = ["local_secret", "local_secret_path"]

_DIRECTORY = "stratagem"
_FILE = "local-secret"
_STATE_VARIABLE = "XDG_STATE_HOME"
_OTHERS = 0o077
_SECRET_CHARACTERS = len(new_secret())


def local_secret_path() -> Path:
    """Returns the path of the secret, in ``$XDG_STATE_HOME``, by default ``~/.local/state``.

    Raises:
        PermissionDeniedError: If the user has no home directory.
    """
    given = os.environ.get(_STATE_VARIABLE, "")
    if os.path.isabs(given):  # the XDG specification says to ignore relative paths
        return Path(given) / _DIRECTORY / _FILE
    try:
        return Path.home() / ".local" / "state" / _DIRECTORY / _FILE
    except RuntimeError:
        raise _refusal("this user's home directory", "it is unknown") from None


def local_secret() -> str:
    """Returns the secret of this user, and creates it first if there is none.

    Raises:
        PermissionDeniedError: If the file cannot be created or read, or other users can access it.
    """
    path = local_secret_path()
    try:
        make_private_directory(path.parent)
        _check_private(path.parent, os.lstat(path.parent), stat.S_ISDIR)
        secret = _read(path)
        while secret is None:
            _make(path)
            secret = _read(path)
    except PermissionDeniedError:
        raise
    except OSError as error:
        raise _refusal(str(path), (error.strerror or str(error)).lower()) from None
    if len(secret) != _SECRET_CHARACTERS:
        raise _refusal(str(path), "its content is not a secret; remove it")
    return secret


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        _check_private(path, os.fstat(descriptor), stat.S_ISREG)
        return file.read(_SECRET_CHARACTERS + 1)


def _make(path: Path) -> None:
    """Creates the file atomically with its content, unless another process has created it first."""
    draft = path.with_name(f".{_FILE}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(new_secret())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _check_private(path: Path, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode):
        raise _refusal(str(path), "it has the wrong file type")
    if status.st_uid != os.getuid():
        raise _refusal(str(path), f"it belongs to user {status.st_uid}, not {os.getuid()}")
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise _refusal(str(path), f"other users can access it (mode {mode:o}); run chmod go-rwx")


def _refusal(what: str, reason: str) -> PermissionDeniedError:
    return PermissionDeniedError(
        "Without a cluster secret or TLS, tasks on one machine authenticate each other by a file that only "
        f"their user can read, but {what} cannot be used: {reason}. Fix that, choose another directory "
        f"with {_STATE_VARIABLE}, or set {SECRET_VARIABLE} or {FILE_VARIABLE} to the same in all tasks."
    )
