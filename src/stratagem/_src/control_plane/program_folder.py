"""Where an elastic job keeps compiled programs: workers that form again need not compile them again."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from pathlib import Path
from typing import Any

import jax

from stratagem._src.jax_compat.compilation_cache import cache_programs_in
from stratagem._src.transport.private_folder import make_private_folder

__all__ = ["keep_programs"]

_log = logging.getLogger("stratagem")
_CACHE_VARIABLE = "XDG_CACHE_HOME"
_OTHERS_WRITE = 0o022


def keep_programs() -> None:
    """Has the compiled programs of this process kept in files, for other processes and later ones.

    They are in ``jax_compilation_cache_dir``, or else in ``$XDG_CACHE_HOME/stratagem/programs``, by
    default ``~/.cache``. A folder that others than this user may write to is not used.
    """
    config: Any = jax.config
    if not config.jax_enable_compilation_cache:
        return
    try:
        folder = _folder(config.jax_compilation_cache_dir) / _processor()
        make_private_folder(folder)
        status = folder.lstat()
    except (OSError, RuntimeError) as error:
        _log.info("Compiled programs are not kept: %s", error)
        return
    if status.st_uid != os.getuid() or status.st_mode & _OTHERS_WRITE:
        _log.warning(
            "Compiled programs are not kept in %s: the folder must belong to this user, and no other "
            "user may write there. Remove it, or set JAX_COMPILATION_CACHE_DIR to another one.",
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
    """Tells processors apart: a program for one may have instructions that another does not know.

    Hosts often share a home directory, and JAX's keys do not hold this.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told = "\n".join(sorted({s for s in lines if s.startswith(("model name", "flags"))}))
    except OSError:
        told = platform.processor()
    return hashlib.sha256(f"{platform.machine()}\n{told}".encode()).hexdigest()[:16]
