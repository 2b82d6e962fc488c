"""Exits forked children of a process with JAX devices without XLA's teardown.

The child has XLA's objects but none of its threads. Destroying them, as the interpreter does in
finalization and JAX does at exit, waits for these threads forever or crashes. So the interpreter of such a
child is not finalized: after all exit functions have run, files are flushed and the child exits.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib

from stratagem._src.jax_compat.running_backends import running_backends
from stratagem._src.process.exit_code import exit_code, record_exit_calls
from stratagem._src.process.fork import run_in_child
from stratagem._src.process.hard_exit import after_all_exit_functions, end_process

__all__ = ["skip_xla_teardown_in_children"]

_registered: list[bool] = []


def skip_xla_teardown_in_children() -> None:
    """Makes children that this process forks exit without XLA's teardown."""
    if not _registered:
        _registered.append(True)
        run_in_child(_prepare_end)


def _prepare_end() -> None:
    if not running_backends():
        return
    for module, name in (("jax._src.api", "clean_up"), ("jax._src.dispatch", "wait_for_tokens")):
        with contextlib.suppress(ImportError, AttributeError):
            atexit.unregister(getattr(importlib.import_module(module), name))
    record_exit_calls()
    after_all_exit_functions(_end)


def _end() -> None:
    code = exit_code()
    # Unknown, as after a bare ``SystemExit``: the interpreter continues to its finalization.
    if code is not None:
        end_process(code)
