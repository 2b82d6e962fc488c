"""Exits forked children of a process with JAX devices without XLA's teardown.

The child has XLA's objects but none of its threads. Destroying them, as the interpreter does in
finalization and JAX does at exit, waits for these threads forever or crashes. So the interpreter of such a
child is not finalized: after all exit functions have run, files are flushed and the child exits.
"""

from __future__ import annotations

import atexit
import dis
import importlib
import signal
import sys
from types import FrameType

from stratagem._src.jax_compat.running_backends import running_backends
from stratagem._src.process.exit_calls import exit_code_of_call, record_exit_calls
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
        function = getattr(importlib.import_module(module), name, None)
        if function is not None:
            atexit.unregister(function)
    record_exit_calls()
    frame: FrameType = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    outermost, printed_before = frame, _printed()

    def end() -> None:
        code = _code(outermost, printed_before)
        if code is not None:
            end_process(code)

    after_all_exit_functions(end)


def _printed() -> BaseException | None:
    """Returns the uncaught exception that the interpreter has printed, if any."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _code(outermost: FrameType, printed_before: BaseException | None) -> int | None:
    """Returns the exit code of the child; ``None`` if it is unknown, as after a bare ``SystemExit``."""
    code = exit_code_of_call()
    if code is not None:
        return code
    printed = _printed()
    if printed is not printed_before:
        return -signal.SIGINT if isinstance(printed, KeyboardInterrupt) else 1
    last = outermost.f_code.co_code[outermost.f_lasti] if outermost.f_lasti >= 0 else 0
    return 0 if dis.opname[last].startswith("RETURN_") else None
