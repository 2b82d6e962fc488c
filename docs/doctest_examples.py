"""Shows the ``>>>`` examples of docstrings as code on the site: an extension of griffe."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestExamples(griffe.Extension):
    """Puts each example into a block of code."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Changes the docstring of what was read."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Returns a docstring with a fence around each paragraph that begins with ``>>>``.

    >>> print(fenced("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    inside = False
    for line in [*docstring.splitlines(), ""]:
        if not inside and line.lstrip().startswith(">>> "):
            lines.append(line[: len(line) - len(line.lstrip())] + "```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append(lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())] + "```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])
