"""The registry of this user's monitored jobs on this machine: one private file for each job."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stratagem._src.process.private_files import make_private_directory
from stratagem._src.transport.local_secret import local_secret_path

__all__ = ["MonitoredJob", "announce_job", "monitored_jobs"]


class MonitoredJob(NamedTuple):
    """A running job, the link of its dashboard, and the process and host that serve it."""

    name: str
    link: str
    launcher: int
    host: str

    @classmethod
    def of_this_process(cls, name: str, link: str) -> MonitoredJob:
        """Returns an entry for a job that this process serves."""
        return cls(name, link, os.getpid(), socket.gethostname())

    @property
    def is_here(self) -> bool:
        """Whether this machine serves the job."""
        return self.host == socket.gethostname()


def _folder() -> Path:
    return local_secret_path().parent / "jobs"


@contextlib.contextmanager
def announce_job(job: MonitoredJob) -> Iterator[None]:
    """Registers a job for ``stratagem top`` until the end of the block.

    Raises:
        OSError: If the file cannot be written.
        PermissionDeniedError: If this user has no home directory.
    """
    folder = _folder()
    make_private_directory(folder)
    path = folder / f"{job.launcher}-{secrets.token_hex(4)}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(job._asdict(), file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def monitored_jobs() -> list[MonitoredJob]:
    """Returns the jobs on this machine whose launchers are alive, the newest last.

    Home directories may be shared, so files of other machines are skipped: their processes are not visible.
    """
    with contextlib.suppress(FileNotFoundError):
        paths = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
        here = [(path, job) for path in paths if (job := _read(path)) and job.is_here]
        for path, job in here:
            if not _is_alive(job.launcher):
                path.unlink(missing_ok=True)  # the launcher was killed
        return [job for _, job in here if _is_alive(job.launcher)]
    return []


def _read(path: Path) -> MonitoredJob | None:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        name, link, host = (str(entry[key]) for key in ("name", "link", "host"))
        return MonitoredJob(name, link, int(entry["launcher"]), host)
    except (OSError, ValueError, KeyError, TypeError):  # it is being written, or is another file
        return None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):  # gone, or its id belongs to another user now
        return False
    return True
