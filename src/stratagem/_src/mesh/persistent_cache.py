"""JAX's persistent compilation cache: a program that was compiled once is loaded by later processes."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from pathlib import Path
from typing import Any

import jax

from stratagem._src.jax_compat.compilation_cache import cache_programs_in
from stratagem._src.process.private_files import make_private_directory

__all__ = ["enable_default_cache", "enable_persistent_cache"]

_log = logging.getLogger("stratagem")
_CACHE_VARIABLE = "XDG_CACHE_HOME"
_OTHERS_WRITE = 0o022


def enable_default_cache(*, may_have_accelerators: bool) -> None:
    """Enables the cache, unless the user has chosen a directory for JAX's own.

    Not for several processes with accelerators: XLA's GPU compiler divides its autotuning between them, and
    a process that compiles would wait for one that has loaded the program.

    Args:
        may_have_accelerators: Whether programs may run on an accelerator.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir:
        return
    if not (may_have_accelerators and jax.distributed.is_initialized()):
        enable_persistent_cache()


def enable_persistent_cache() -> None:
    """Enables JAX's persistent compilation cache for this process.

    The directory is ``jax_compilation_cache_dir`` if set, else ``$XDG_CACHE_HOME/stratagem/programs``, by
    default under ``~/.cache``. A directory that other users may write to is not used: loading a program
    from it would run their code.
    """
    config: Any = jax.config
    if not config.jax_enable_compilation_cache:
        return
    try:
        folder = _folder(config.jax_compilation_cache_dir) / _processor()
        make_private_directory(folder)
        status = folder.lstat()
    except (OSError, RuntimeError) as error:
        _log.info("The persistent compilation cache is disabled: %s", error)
        return
    if status.st_uid != os.getuid() or status.st_mode & _OTHERS_WRITE:
        _log.warning(
            "The persistent compilation cache in %s is disabled: the directory must belong to this user, "
            "and no other user may write to it. Remove it, or set JAX_COMPILATION_CACHE_DIR.",
            folder,
        )
        return
    cache_programs_in(folder)


def _folder(wanted: str | None) -> Path:
    if wanted:
        return Path(wanted).absolute()
    given = os.environ.get(_CACHE_VARIABLE, "")
    home = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return home / "stratagem" / "programs"


def _processor() -> str:
    """Returns a hash of the CPU model: a program compiled for one CPU may use instructions of it.

    Hosts often share a home directory, and JAX's cache keys do not contain the CPU.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told = "\n".join(sorted({s for s in lines if s.startswith(("model name", "flags"))}))
    except OSError:
        told = platform.processor()
    return hashlib.sha256(f"{platform.machine()}\n{told}".encode()).hexdigest()[:16]
