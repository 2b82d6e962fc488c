"""What a process sets up once, before the JAX backend starts with the first device or array."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from typing import Any

import jax

from stratagem._src.jax_compat.host_device import add_host_platform
from stratagem._src.jax_compat.xla_flags import add_cpu_flag
from stratagem._src.mesh.persistent_cache import enable_default_cache
from stratagem._src.process.malloc import MAX_KEPT_BYTES, keep_freed_memory

__all__ = ["may_have_accelerators", "prepare_backend"]


@functools.cache
def prepare_backend() -> None:
    """Enables the compilation cache, and keeps freed memory if programs run on the CPU; once.

    Whatever needs devices first calls it, before JAX starts the threads that run programs. Importing this
    library does not: a process that never runs a program keeps its allocator. With an accelerator the
    temporary buffers of programs are not in this process's memory, so nothing would be gained.
    """
    add_host_platform()
    accelerated = may_have_accelerators()
    enable_default_cache(may_have_accelerators=accelerated)
    if not accelerated and keep_freed_memory():
        # XLA allocates the temporary buffers of a program as one block, and the heap of a thread keeps
        # blocks of up to 64 MiB only. A single buffer that is larger stays whole.
        add_cpu_flag("--xla_multiheap_size_constraint_per_heap", MAX_KEPT_BYTES // 2)


def may_have_accelerators() -> bool:
    """Returns whether JAX may find an accelerator: a plugin for one is installed, and not switched off."""
    config: Any = jax.config
    if config.jax_platforms:
        return set(config.jax_platforms.split(",")) != {"cpu"}
    return bool(
        importlib.metadata.entry_points(group="jax_plugins")
        or importlib.util.find_spec("jax_plugins")
        or importlib.util.find_spec("libtpu")
        or os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS")
    )
