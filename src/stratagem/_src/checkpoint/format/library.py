"""TensorStore, which is loaded when the first checkpoint is written or read."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from stratagem._src.core.errors import MissingExtraError
from stratagem._src.process.background import Background

__all__ = ["tensorstore"]

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


def _load() -> Any:
    try:
        if threading.current_thread() is threading.main_thread():
            return _load_in_a_thread()
        return importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        raise MissingExtraError(
            "Checkpoints are written and read by TensorStore, which is not installed here. Install it "
            "with `pip install stratagem[checkpoint]`, also where parameter servers run."
        ) from error


def _load_in_a_thread() -> Any:
    """Imports the module in a thread, for which the main thread waits.

    A signal handler that saves may interrupt the first save. Were the import in the main thread, the
    handler would find the module half imported and import its compiled part again, which aborts the
    process. In a thread the import goes on below the handler, whose own thread waits for it as threads
    do that import the same module. What TensorStore imports was imported with this package, so the
    thread needs nothing that the main thread may be importing.
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
