"""Serialization of exceptions that one task raises in another."""

from __future__ import annotations

import contextlib
import pickle
import traceback

import cloudpickle

from stratagem._src.core.errors import RemoteError
from stratagem._src.core.terminal_text import printable

__all__ = ["exception_from_bytes", "exception_to_bytes"]


def exception_to_bytes(error: BaseException) -> bytes:
    """Serializes an exception and its traceback, even if it cannot be pickled.

    An exception that ends a program, such as ``SystemExit``, must not end another: it becomes a
    ``RemoteError``.
    """
    text = "".join(traceback.format_exception(error))
    summary = "".join(traceback.format_exception_only(error)).strip()
    pickled = None
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):
            pickled = cloudpickle.dumps(error)
    return pickle.dumps((pickled, summary, text))


def exception_from_bytes(data: bytes, task: str) -> Exception:
    """Returns the exception of another task, with its original type if possible and a note that names it.

    Only for bytes from an authenticated peer: unpickling can run any code.
    """
    pickled, summary, text = pickle.loads(data)
    error = None
    if pickled is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(pickled)
    if not isinstance(error, Exception):
        error = RemoteError(printable(summary))
    error.add_note(f"Raised by {task}:\n{printable(text.rstrip())}")
    return error
