"""Code generation: builds Python functions that are specialized for one case, with all loops unrolled.

Devices are idle while Python runs between two programs, and a loop over four variables takes twice as
long as the same four statements written out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stratagem._src.core.types import Leaf

__all__ = ["CodeWriter", "listed"]


class CodeWriter:
    """Builds the source of a function line by line, together with the values that it refers to.

    Args:
        signature: The function's name and parameters.
        **values: Values that the generated code refers to by these names.

    >>> function = CodeWriter("add_to(x)", offset=3)
    >>> function.write(f"return x + offset + {function.named(4)}")
    >>> function.compile()(5)
    12
    """

    def __init__(self, signature: str, **values: Leaf) -> None:
        self._name = signature.partition("(")[0]
        self._values = values
        self._lines = [f"def {signature}:"]
        self._indent = 1

    def named(self, value: Leaf) -> str:
        """Returns a name by which the generated code can refer to a value."""
        name = f"value_{len(self._values)}"
        self._values[name] = value
        return name

    def write(self, line: str) -> None:
        """Adds a line to the innermost block."""
        self._lines.append("    " * self._indent + line)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Adds a line that opens a block; lines written inside the ``with`` statement belong to it."""
        self.write(head)
        self._indent += 1
        yield
        self._indent -= 1

    def compile(self) -> Callable[..., Any]:
        """Compiles the source and returns the function."""
        namespace = dict(self._values)
        exec(compile("\n".join(self._lines), f"<{self._name}>", "exec"), namespace)
        function: Callable[..., Any] = namespace.pop(self._name)
        return function


def listed(names: Iterable[str]) -> str:
    """Returns a list display of names, which is also a valid target for unpacking."""
    return f"[{', '.join(names)}]"
