"""The jobs of this user that can be looked at on this machine: a file for each, for the user only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stratagem._src.transport.local_secret import local_secret_path

__all__ = ["ObservedJob", "announce_job", "observed_jobs"]


class ObservedJob(NamedTuple):
    """A job that runs, and the link by which it is looked at."""

    name: str
    link: str
    launcher: int


def _folder() -> Path:
    return local_secret_path().parent / "jobs"


@contextlib.contextmanager
def announce_job(job: ObservedJob) -> Iterator[None]:
    """Lets ``stratagem top`` find a job until the end of the block.

    Raises:
        OSError: If there is no place for the file.
        PermissionDeniedError: If this user has no home.
    """
    folder = _folder()
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{job.launcher}-{secrets.token_hex(4)}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(job._asdict(), file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def observed_jobs() -> list[ObservedJob]:
    """Returns the jobs whose launchers are alive, the newest last."""
    with contextlib.suppress(FileNotFoundError):
        paths = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
        found = [(path, _read(path)) for path in paths]
        for path, job in found:
            if job is not None and not _is_alive(job.launcher):
                path.unlink(missing_ok=True)  # the launcher was killed
        return [job for _, job in found if job is not None and _is_alive(job.launcher)]
    return []


def _read(path: Path) -> ObservedJob | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return ObservedJob(str(said["name"]), str(said["link"]), int(said["launcher"]))
    except (OSError, ValueError, KeyError, TypeError):  # it is being written, or is no such file
        return None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):  # gone, or its number is another user's now
        return False
    return True
