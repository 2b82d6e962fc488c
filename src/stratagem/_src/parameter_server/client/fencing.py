"""What a coordinator and those that take over from it have in common."""

from __future__ import annotations

import uuid

from stratagem._src.process.fork import in_child

__all__ = ["continue_lineage", "lineage"]

_lineage: str | None = None


def lineage() -> str:
    """Returns the name of the line of coordinators that this process is the latest of."""
    global _lineage
    if _lineage is None:
        _lineage = uuid.uuid4().hex
    return _lineage


def continue_lineage(name: str | None) -> None:
    """Makes this process the latest of a line of coordinators; of a new one with ``None``."""
    global _lineage
    _lineage = name


in_child(lambda: continue_lineage(None))
