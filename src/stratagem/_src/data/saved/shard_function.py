"""``shard_func``: assigns elements to the files of a saved dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Element
from stratagem._src.data.transforms.element_function import ElementFunction

__all__ = ["ShardFunction"]


class ShardFunction:
    """Returns the shard index of an element: the user's, or 0 for all elements.

    Args:
        fn: The user's function, if any.
    """

    def __init__(self, fn: Callable[..., Any] | None) -> None:
        self._function = None if fn is None else ElementFunction(fn, "shard_func")

    @property
    def is_constant(self) -> bool:
        """Whether there is only one file."""
        return self._function is None

    def __call__(self, element: Element) -> int:
        """Returns the shard index of an element."""
        if self._function is None:
            return 0
        number = self._function(element)
        if getattr(number, "shape", None) != () or number.dtype.kind not in "biu":
            raise InvalidArgumentError(f"shard_func must return one integer, got {number!r}.")
        return int(number)
