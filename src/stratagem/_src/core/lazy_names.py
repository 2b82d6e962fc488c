"""Lazy module attributes, loaded at first access, to keep imports fast."""

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

    Assign it under ``if not TYPE_CHECKING``, and import the names under ``if TYPE_CHECKING``: with a
    ``__getattr__`` a type checker would accept every name. An unknown name raises an error that names the
    replacement of TensorFlow's name.

    >>> find = lazy_names("package", {"sqrt": ("math", "sqrt"), "math": ("math", None)})
    >>> find("sqrt")(4.0), find("math").pi > 3
    (2.0, True)

    Args:
        module_name: The module's own name.
        names: For each name, its module and its name there; ``None`` means the module itself.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise missing_name(module_name, name)
        module, attribute = names[name]
        loaded = importlib.import_module(module)
        return loaded if attribute is None else getattr(loaded, attribute)

    return find
