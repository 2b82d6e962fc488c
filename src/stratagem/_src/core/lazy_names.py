"""Names of a module that are loaded when they are first asked for, to keep importing quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    module_name: str, names: Mapping[str, tuple[str, str | None]]
) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of a module.

    Assign it under ``if not TYPE_CHECKING``, and import the names under ``if TYPE_CHECKING``: a type
    checker that sees a ``__getattr__`` believes in every name.

    >>> find = lazy_names("package", {"sqrt": ("math", "sqrt"), "math": ("math", None)})
    >>> find("sqrt")(4.0), find("math").pi > 3
    (2.0, True)

    Args:
        module_name: The module's own name.
        names: For each name the module that has it, and what it is called there; ``None`` stands for
            that module itself.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        module, attribute = names[name]
        loaded = importlib.import_module(module)
        return loaded if attribute is None else getattr(loaded, attribute)

    return find
