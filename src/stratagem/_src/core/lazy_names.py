"""Names of a module that are loaded when they are first asked for, to keep importing quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from stratagem._src.core.missing_names import missing_name

__all__ = ["lazy_names"]


def lazy_names(
    module_name: str, names: Mapping[str, tuple[str, str | None]] = MappingProxyType({})
) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of a module.

    Assign it under ``if not TYPE_CHECKING``, and import the names under ``if TYPE_CHECKING``: a type
    checker that sees a ``__getattr__`` believes in every name. A name that is not among them is an error
    that says what takes the place of TensorFlow's.

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
            raise missing_name(module_name, name)
        module, attribute = names[name]
        loaded = importlib.import_module(module)
        return loaded if attribute is None else getattr(loaded, attribute)

    return find
