"""A safe store for JAX's persistent compilation cache.

JAX writes its files in place, and only in the first process: a process that reads at the same time, or
after a crash, gets a truncated file, and workers on other hosts never get one. Here every process writes
the programs that it compiles, atomically through a temporary file, and verifies what it reads. If the
private interface of JAX has changed, nothing is cached.
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
_WRITE_PARAMETERS = ["cache_key", "compile_time_secs", "module_name", "backend", "executable"]
_KNOWN_PARAMETERS = (_WRITE_PARAMETERS, [*_WRITE_PARAMETERS, "host_callbacks"])


class ProgramFiles:
    """Programs by key, in the files of a folder, with least-recently-used eviction.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from stratagem._src.jax_compat.compilation_cache import ProgramFiles
    >>> with tempfile.TemporaryDirectory() as name:
    ...     files = ProgramFiles(Path(name))
    ...     files.put("key", b"program")
    ...     files.get("key"), files.get("another")
    (b'program', None)

    Args:
        folder: The folder. Anyone who can write there can run code in this process.
        max_bytes: The maximum total size of the files.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._path = folder  # JAX reads this attribute
        self._max_bytes = max_bytes
        # Of all files, as this process knows; listing them takes long if there are many.
        self._bytes: int | None = None

    def get(self, key: str) -> bytes | None:
        """Returns a program; ``None`` if it is missing or corrupt."""
        path = self._file(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, program = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        with contextlib.suppress(OSError):
            if digest != hashlib.sha256(program).digest():
                path.unlink()  # for example, a power failure before it reached the disk
                return None
            os.utime(path)
        return program

    def put(self, key: str, value: bytes) -> None:
        """Stores a program. A failure to write is ignored."""
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
            if self._bytes is not None:
                self._bytes += _DIGEST_BYTES + len(value)
            if self._bytes is None or self._bytes > self._max_bytes:
                self._bytes = self._evict()
        except OSError as error:
            _log.debug("Cannot store a compiled program: %s", error)
        finally:
            if name:  # a failed write on a full disk must not leave its file behind
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def _file(self, key: str) -> Path:
        # Keys begin with the name of a function, of any length.
        return self._path / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    def _evict(self) -> int:
        """Removes the files that were not used for longest; returns the size of those that stay."""
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith((_SUFFIX, _UNFINISHED)):
                    with contextlib.suppress(OSError):  # another process evicts too
                        status = entry.stat()
                        found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
        return total


def cache_programs_in(folder: Path) -> bool:
    """Makes JAX load compiled programs from a folder and store them there; returns whether it can.

    Args:
        folder: An existing folder that only this user can write to.
    """
    try:
        cache: Any = importlib.import_module("jax._src.compilation_cache")
        compiler: Any = importlib.import_module("jax._src.compiler")
        parameters = list(inspect.signature(compiler._cache_write).parameters)
        known = parameters in _KNOWN_PARAMETERS and hasattr(cache, "_cache_initialized")
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
        host_callbacks: Any = (),
    ) -> None:
        # Until JAX 0.10 a program with callbacks contains addresses of this process; since then they are
        # passed to it when it is loaded. The function of JAX that this replaces also skips all processes
        # but the first.
        if host_callbacks:
            return
        try:
            put(cache_key, module_name, executable, backend, int(compile_time_secs))
        except Exception as error:
            _log.debug("Cannot store the compiled program %s: %s", module_name, error)

    with lock:
        cache._cache, cache._cache_initialized = ProgramFiles(folder), True
    compiler._cache_write = write
    return True
