"""The names of Keras that are not public, each with a test that fails when it is gone."""

from __future__ import annotations

from typing import Any

from keras.src.backend.common.stateless_scope import in_stateless_scope as _in_stateless_scope
from keras.src.backend.common.variables import Variable as _CommonVariable

__all__ = ["COMMON_VARIABLE", "in_stateless_scope"]

COMMON_VARIABLE: Any = _CommonVariable
"""The class of variables that those of every backend derive from."""


def in_stateless_scope() -> bool:
    """Returns whether this thread computes with values that Keras keeps apart from its variables."""
    return bool(_in_stateless_scope())
