"""JSON that every reader takes: Python's own has numbers in it that others refuse."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["plain_json"]


def plain_json(value: Any) -> str:
    """Returns a value as one line of JSON, with numbers that are not finite as texts.

    >>> from stratagem._src.telemetry.monitoring.plain_json import plain_json
    >>> plain_json({"loss": float("nan"), "steps": 3})
    '{"loss":"nan","steps":3}'
    """
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
