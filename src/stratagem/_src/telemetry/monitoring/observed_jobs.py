"""The jobs of this user that can be looked at on this machine: a file for each, for the user only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stratagem._src.transport.local_secret import local_secret_path
from stratagem._src.transport.private_folder import make_private_folder

__all__ = ["ObservedJob", "announce_job", "observed_jobs"]


class ObservedJob(NamedTuple):
    """A job that runs, the link by which it is looked at, and the process and host that serve it."""

    name: str
    link: str
    launcher: int
    host: str

    @classmethod
    def of_this_process(cls, name: str, link: str) -> ObservedJob:
        """Returns a job that this process serves."""
        return cls(name, link, os.getpid(), socket.gethostname())

    @property
    def is_here(self) -> bool:
        """Whether it is served on this machine."""
        return self.host == socket.gethostname()


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
    make_private_folder(folder)
    path = folder / f"{job.launcher}-{secrets.token_hex(4)}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(job._asdict(), file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def observed_jobs() -> list[ObservedJob]:
    """Returns the jobs on this machine whose launchers are alive, the newest last.

    Homes may be shared, so there may be files of other machines, where one cannot see who is alive.
    """
    with contextlib.suppress(FileNotFoundError):
        paths = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
        here = [(path, job) for path in paths if (job := _read(path)) and job.is_here]
        for path, job in here:
            if not _is_alive(job.launcher):
                path.unlink(missing_ok=True)  # the launcher was killed
        return [job for _, job in here if _is_alive(job.launcher)]
    return []


def _read(path: Path) -> ObservedJob | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        name, link, host = (str(said[key]) for key in ("name", "link", "host"))
        return ObservedJob(name, link, int(said["launcher"]), host)
    except (OSError, ValueError, KeyError, TypeError):  # it is being written, or is no such file
        return None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):  # gone, or its number is another user's now
        return False
    return True
