"""Functions written for one case, without loops.

Where Python runs between two programs the devices wait, and a loop over four variables takes twice as
long as the four lines that it stands for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["StraightLine", "listed"]


class StraightLine:
    """The lines of a function, written one by one, and the values that they name.

    Args:
        signature: The function's name and parameters.
        **values: Values that lines use by these names.

    >>> function = StraightLine("add_to(x)", offset=3)
    >>> function.write(f"return x + offset + {function.named(4)}")
    >>> function.compile()(5)
    12
    """

    def __init__(self, signature: str, **values: Any) -> None:
        self._name = signature.partition("(")[0]
        self._values = values
        self._lines = [f"def {signature}:"]
        self._indent = 1

    def named(self, value: Any) -> str:
        """Returns a name for a value, which lines may use."""
        name = f"value_{len(self._values)}"
        self._values[name] = value
        return name

    def write(self, line: str) -> None:
        """Adds a line to the innermost block."""
        self._lines.append("    " * self._indent + line)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Adds a line that begins a block, to which those written meanwhile belong."""
        self.write(head)
        self._indent += 1
        yield
        self._indent -= 1

    def compile(self) -> Callable[..., Any]:
        """Returns the function."""
        namespace = dict(self._values)
        exec(compile("\n".join(self._lines), f"<{self._name}>", "exec"), namespace)
        function: Callable[..., Any] = namespace.pop(self._name)
        return function


def listed(names: Iterable[str]) -> str:
    """Returns the display of a list, which is also what a sequence is unpacked to."""
    return f"[{', '.join(names)}]"
