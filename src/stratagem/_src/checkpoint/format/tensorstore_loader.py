"""Imports TensorStore when the first checkpoint is written or read; shortens its messages."""

from __future__ import annotations

import importlib
import re
import threading
from typing import Any

from stratagem._src.core.errors import MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.process.background import Background

__all__ = ["short_message", "tensorstore"]

_NAME = "tensorstore"

_loaded: list[Any] = []


def tensorstore() -> Any:
    """Returns the module ``tensorstore``.

    Raises:
        MissingExtraError: If it is not installed.
    """
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


def short_message(error: Exception) -> str:
    """Returns TensorStore's message without the spec, the source locations and the HTTP response."""
    return re.split(r" \[(?:tensorstore_spec|source locations|http_response_\w+)=", str(error))[0]


def _load() -> Any:
    try:
        if threading.current_thread() is threading.main_thread():
            return _load_in_a_thread()
        return importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        raise MissingExtraError(
            "Checkpoints need TensorStore, also on hosts of parameter servers. It is not installed. "
            + install_hint("checkpoint")
        ) from error


def _load_in_a_thread() -> Any:
    """Imports the module in a thread, while the main thread waits.

    A signal handler that saves may interrupt the first save. If the main thread did the import, the
    handler would find the module half imported and import its extension module again, which aborts the
    process. In a thread, the import continues during the handler, whose own import thread waits on the
    import lock. This package has already imported TensorStore's dependencies, so the thread does not wait
    for anything that the main thread may be importing.
    """
    found: list[Any] = []
    failed: list[BaseException] = []

    def load() -> None:
        try:
            found.append(importlib.import_module(_NAME))
        except BaseException as error:
            failed.append(error)

    Background("a checkpoint").start(load, name="importing TensorStore").join()
    if failed:
        raise failed.pop()
    return found[0]
