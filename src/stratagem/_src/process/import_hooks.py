"""``when_imported``: runs a callback when the program imports an optional library."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["when_imported"]


def when_imported(
    library: str,
    call: Callable[[], None],
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Calls ``call`` when ``library`` is imported; at once if it already is.

    >>> when_imported("sys", lambda: print("it is there"))
    it is there

    Args:
        library: The name of a top-level package.
        call: Called right after the library's own code has run.
        around: Returns a block in which that code runs.
    """
    if sys.modules.get(library) is not None:
        call()
    else:
        sys.meta_path.insert(0, _ImportWatcher(library, call, around))


class _ImportWatcher:
    """A meta path finder that delegates to the others, and wraps the loader of the library."""

    def __init__(
        self,
        library: str,
        call: Callable[[], None],
        around: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._library = library
        self._call = call
        self._around = around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._library:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._wrap(spec.loader)
                return spec
        return None

    def _wrap(self, loader: Loader) -> None:
        load = loader.exec_module

        def load_and_call(module: ModuleType) -> None:
            with _without_collections():
                with self._around():
                    load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._call()

        loader.exec_module = load_and_call  # type: ignore[method-assign]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Pauses the garbage collector: nearly all objects that an import makes stay.

    Looking at them again and again takes an eighth of the time in which Keras and JAX are imported.
    They are not looked at afterwards either, but become old as they are.
    """
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # the program may have frozen objects of its own
                gc.freeze()
                gc.unfreeze()
            gc.enable()
