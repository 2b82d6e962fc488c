"""Imports ``stratagem.keras.layers`` as ``keras.layers``: one module with two names, not a second copy."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["give_modules_a_second_name"]


def give_modules_a_second_name(name: str, original: str) -> None:
    """Makes modules below ``name`` the modules below ``original``.

    Without it Python would run their files again, and names that the bridge replaces would not be replaced.

    Args:
        name: The second name of the package, such as ``"stratagem.keras"``.
        original: The package.
    """
    sys.meta_path.insert(0, _SecondNames(f"{name}.", f"{original}."))


class _SecondNames:
    """A finder and loader of the modules of a package by a second name."""

    def __init__(self, prefix: str, original: str) -> None:
        self._prefix = prefix
        self._original = original

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # The import system returns what is here when the module has been executed.
        sys.modules[name] = _module(self._original + name.removeprefix(self._prefix))


def _module(name: str) -> ModuleType:
    parent, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(parent), last, None)
    # Namespaces of names of Keras 2, such as keras.utils.experimental, are attributes only.
    return importlib.import_module(name) if found is None else found
