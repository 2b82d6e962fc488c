"""The lineage id: shared by a coordinator and every coordinator that takes over from it."""

from __future__ import annotations

import uuid

from stratagem._src.process.fork import run_in_child

__all__ = ["adopt_lineage", "lineage_id"]

_lineage_id: str | None = None


def lineage_id() -> str:
    """Returns the lineage id of this process's coordinator; a new one on the first call."""
    global _lineage_id
    if _lineage_id is None:
        _lineage_id = uuid.uuid4().hex
    return _lineage_id


def adopt_lineage(name: str | None) -> None:
    """Sets the lineage id, when this process takes over from a coordinator; ``None`` starts a new one."""
    global _lineage_id
    _lineage_id = name


run_in_child(lambda: adopt_lineage(None))
