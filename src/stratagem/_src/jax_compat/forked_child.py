"""The end of a forked child of a process in which JAX has devices.

The child has XLA's objects but none of its threads: taking them down, as the interpreter does at its end
and JAX registers for exit, waits for these threads without end or crashes. So the interpreter of such a
child is not finalized. When everything that was registered for exit has run, files are flushed and the
child ends.
"""

from __future__ import annotations

import atexit
import dis
import importlib
import signal
import sys
from types import FrameType

from stratagem._src.jax_compat.running_backends import running_backends
from stratagem._src.process.exit_call import exit_code_of_call, watch_exit_calls
from stratagem._src.process.fork import in_child
from stratagem._src.process.hard_exit import after_all_exit_functions, end_process

__all__ = ["end_children_without_xla"]

_registered: list[bool] = []


def end_children_without_xla() -> None:
    """Has children that this process forks end so."""
    if not _registered:
        _registered.append(True)
        in_child(_prepare_end)


def _prepare_end() -> None:
    if not running_backends():
        return
    for module, name in (("jax._src.api", "clean_up"), ("jax._src.dispatch", "wait_for_tokens")):
        function = getattr(importlib.import_module(module), name, None)
        if function is not None:
            atexit.unregister(function)
    watch_exit_calls()
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
    """Returns the exception that the interpreter has printed because nobody caught it."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _code(outermost: FrameType, printed_before: BaseException | None) -> int | None:
    """Returns the code with which the child ends, or ``None`` if nothing tells: a bare ``SystemExit``."""
    code = exit_code_of_call()
    if code is not None:
        return code
    printed = _printed()
    if printed is not printed_before:
        return -signal.SIGINT if isinstance(printed, KeyboardInterrupt) else 1
    last = outermost.f_code.co_code[outermost.f_lasti] if outermost.f_lasti >= 0 else 0
    return 0 if dis.opname[last].startswith("RETURN_") else None
