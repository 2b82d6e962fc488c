"""Writes tables into pages when the site is built, from what they describe.

A hook of MkDocs. A page has the line ``<!-- table: name -->`` where its table belongs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem._src.core.tensorflow_names import TRANSLATIONS

_DOCS = Path(__file__).parent
_MARKER = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)
_MODELS = ("8 layers of 1024, stacked", "8 layers of 1024", "50 layers of 64")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the markers of a page by their tables."""
    return _MARKER.sub(lambda found: TABLES[found[1]](), markdown)


def tensorflow_names() -> str:
    """Returns the table of TensorFlow's names that are not here."""
    rows = sorted(TRANSLATIONS.items(), key=lambda item: item[0].lower())
    lines = [f"| `tf.{name}` | {_cell(text.splitlines()[0])} |" for name, text in rows]
    return "\n".join(["| name | use |", "|---|---|", *lines])


def sharded_state_cost() -> str:
    """Returns the memory and time of sharded training, from the page of benchmarks."""
    _, _, text = (_DOCS / "benchmarks.md").read_text().partition("`benchmarks/sharded_state.py`")
    number = r"\s+([\d.]+)"
    row = rf"^(.+?)\s+(mirrored|shard_state|FullySharded){number}{number}\s+\d+{number} x$"
    found = {(m[1], m[2]): m for m in re.finditer(row, text, re.MULTILINE)}
    lines = ["| model | | at rest | in a step | time |", "|---|---|---|---|---|"]
    for model in _MODELS:
        for sharding in ("mirrored", "shard_state", "FullySharded"):
            _, _, at_rest, in_step, time = found[model, sharding].groups()
            name = model if sharding == "mirrored" else ""
            lines.append(f"| {name} | `{sharding}` | {at_rest} | {in_step} | {time} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")


TABLES: dict[str, Callable[[], str]] = {
    "tensorflow_names": tensorflow_names,
    "sharded_state_cost": sharded_state_cost,
}
