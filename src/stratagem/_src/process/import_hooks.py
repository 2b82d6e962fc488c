"""Something to do when the program imports a library that this one does without."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["when_imported"]


def when_imported(library: str, call: Callable[[], None]) -> None:
    """Calls ``call`` once ``library`` is imported: now, if that has happened already.

    >>> when_imported("sys", lambda: print("it is there"))
    it is there

    Args:
        library: Name of a package that is not part of another.
        call: What to do, right after the library's own code has run.
    """
    if sys.modules.get(library) is not None:
        call()
    else:
        sys.meta_path.insert(0, _Watch(library, call))


class _Watch:
    """Lets others find the library, and is there when it has been loaded."""

    def __init__(self, library: str, call: Callable[[], None]) -> None:
        self._library = library
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._library:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Loader) -> None:
        load = loader.exec_module

        def load_and_call(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        loader.exec_module = load_and_call  # type: ignore[method-assign]
