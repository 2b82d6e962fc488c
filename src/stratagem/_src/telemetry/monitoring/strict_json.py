"""Strict JSON (RFC 8259): Python's own encoder writes NaN and infinities, which other readers reject."""

from __future__ import annotations

import json
import math

from stratagem._src.telemetry.monitoring.job_events import JSONValue

__all__ = ["strict_json"]


def strict_json(value: JSONValue) -> str:
    """Returns a value as one line of JSON, with non-finite numbers as strings.

    >>> from stratagem._src.telemetry.monitoring.strict_json import strict_json
    >>> strict_json({"loss": float("nan"), "steps": 3})
    '{"loss":"nan","steps":3}'
    """
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def _plain(value: JSONValue) -> JSONValue:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
