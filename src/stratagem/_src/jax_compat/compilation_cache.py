"""Compiled programs in files, through JAX's persistent compilation cache.

JAX writes its files in place, from the first process only: a process that reads meanwhile, or after a
crash, gets a truncated one, and workers on other hosts never get any. Here every process writes what it has
compiled, under another name first, and what is read is checked. Where JAX has changed, nothing is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["ProgramFiles", "cache_programs_in"]

_log = logging.getLogger("stratagem")
_SUFFIX = ".program"
_UNFINISHED = ".unfinished"
_MAX_BYTES = 1 << 30
_DIGEST_BYTES = hashlib.sha256().digest_size
_WRITE_PARAMETERS = [
    "cache_key",
    "compile_time_secs",
    "module_name",
    "backend",
    "executable",
    "host_callbacks",
]


class ProgramFiles:
    """Programs by their keys, in the files of a folder; those used least recently go first.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from stratagem._src.jax_compat.compilation_cache import ProgramFiles
    >>> with tempfile.TemporaryDirectory() as name:
    ...     files = ProgramFiles(Path(name))
    ...     files.put("key", b"program")
    ...     files.get("key"), files.get("another")
    (b'program', None)

    Args:
        folder: Where they are. Anyone who can write there can run code in this process.
        max_bytes: How large they may be together.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._path = folder  # JAX wants to know
        self._max_bytes = max_bytes

    def get(self, key: str) -> bytes | None:
        """Returns a program; ``None`` if there is none, or what is there is corrupt."""
        path = self._file(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, program = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        with contextlib.suppress(OSError):
            if digest != hashlib.sha256(program).digest():
                path.unlink()  # the power failed before it was on the disk
                return None
            os.utime(path)
        return program

    def put(self, key: str, value: bytes) -> None:
        """Keeps a program, unless it cannot be written."""
        path = self._file(key)
        if path.exists():
            return
        name = ""
        try:
            with tempfile.NamedTemporaryFile(
                dir=self._path, suffix=_UNFINISHED, delete=False
            ) as file:
                name = file.name
                file.write(hashlib.sha256(value).digest() + value)
            os.replace(name, path)
            name = ""
            self._evict()
        except OSError as error:
            _log.debug("A compiled program cannot be kept: %s", error)
        finally:
            if name:  # else each program that a full disk refuses takes more of it
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def _file(self, key: str) -> Path:
        # Keys begin with the name of a function, of any length.
        return self._path / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    def _evict(self) -> None:
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith((_SUFFIX, _UNFINISHED)):
                    with contextlib.suppress(OSError):  # another process evicts too
                        status = entry.stat()
                        found.append((status.st_mtime, status.st_size, entry.path))
        excess = sum(size for _, size, _ in found) - self._max_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            excess -= size


def cache_programs_in(folder: Path) -> bool:
    """Has JAX look for compiled programs in a folder, and keep them there; returns whether it can.

    Args:
        folder: It exists, and only this user can write there.
    """
    try:
        cache: Any = importlib.import_module("jax._src.compilation_cache")
        compiler: Any = importlib.import_module("jax._src.compiler")
        parameters = list(inspect.signature(compiler._cache_write).parameters)
        known = parameters == _WRITE_PARAMETERS and hasattr(cache, "_cache_initialized")
        put, lock = cache.put_executable_and_time, cache._cache_initialized_mutex
    except (ImportError, AttributeError):
        known = False
    if not known:
        return False

    def write(
        cache_key: str,
        compile_time_secs: float,
        module_name: str,
        backend: Any,
        executable: Any,
        host_callbacks: Any,
    ) -> None:
        # A program with callbacks holds addresses of this process. JAX's own also leaves out programs
        # of other processes than the first.
        if host_callbacks:
            return
        try:
            put(cache_key, module_name, executable, backend, int(compile_time_secs))
        except Exception as error:
            _log.debug("The compiled program %s cannot be kept: %s", module_name, error)

    with lock:
        cache._cache, cache._cache_initialized = ProgramFiles(folder), True
    compiler._cache_write = write
    return True
