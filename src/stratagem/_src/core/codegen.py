"""Code generation: builds Python functions that are specialized for one case, with all loops unrolled.

Devices are idle while Python runs between two programs, and a loop over four variables takes twice as
long as the same four statements written out.

``STRATAGEM_DUMP_CODE=DIRECTORY`` in the environment writes the source of each generated function to a file,
with a line for each value that it refers to. Tracebacks and debuggers then show its lines.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stratagem._src.core.types import Leaf

__all__ = ["DUMP_VARIABLE", "CodeWriter", "listed"]

DUMP_VARIABLE = "STRATAGEM_DUMP_CODE"
"""The environment variable that names a directory for the source of generated functions."""

_dumped = itertools.count()


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
        # The word is for readers of the source; the suffix keeps the name apart from all others.
        word = getattr(value, "__name__", None) or type(value).__name__
        name = f"{re.sub(r'[^A-Za-z0-9_]', '', word)}_v{len(self._values)}"
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
        directory = os.environ.get(DUMP_VARIABLE)
        path = self._dump(Path(directory)) if directory else f"<{self._name}>"
        exec(compile(self.source, path, "exec"), namespace)
        function: Callable[..., Any] = namespace.pop(self._name)
        return function

    @property
    def source(self) -> str:
        """The source so far: the function, then a comment for each value that it refers to."""
        values = [f"# {name}: {_described(value)}" for name, value in self._values.items()]
        return "\n".join([*self._lines, "", *values, ""])

    def _dump(self, directory: Path) -> str:
        """Writes the source to a new file, and returns its path."""
        directory.mkdir(parents=True, exist_ok=True)
        # Tasks of a job can share the directory, so the name holds the process.
        path = directory / f"{self._name}_{os.getpid()}_{next(_dumped)}.py"
        path.write_text(self.source)
        return str(path)


def listed(names: Iterable[str]) -> str:
    """Returns a list display of names, which is also a valid target for unpacking."""
    return f"[{', '.join(names)}]"


def _described(value: Leaf) -> str:
    """Describes a value without reading arrays, and alike in each run: a ``repr`` may hold an address."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {listed(map(_described, value))}"
    if hasattr(value, "__qualname__"):
        module = getattr(value, "__module__", None)
        return f"{module}.{value.__qualname__}" if module else str(value.__qualname__)
    shape = getattr(value, "shape", None)
    kind = type(value).__qualname__
    return kind if shape is None else f"{kind} {value.dtype}{list(shape)}"
