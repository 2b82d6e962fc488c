"""The names of Keras that are not public, each with a test that fails when it is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.stateless_scope import in_stateless_scope as _in_stateless_scope
from keras.src.backend.common.variables import Variable as _CommonVariable

__all__ = [
    "ADD_LOSS",
    "APPLY",
    "APPLY_SCALED",
    "CLEAR_LOSSES",
    "COMMON_VARIABLE",
    "MAYBE_BUILD",
    "NEXT_SEED",
    "OPTIMIZER",
    "OWN_LOSSES",
    "in_stateless_scope",
    "stateless_value",
]

COMMON_VARIABLE: Any = _CommonVariable
"""The class of variables that those of every backend derive from."""

OPTIMIZER: Any = next(cls for cls in keras.Optimizer.__mro__ if "apply" in vars(cls))
"""The class of optimizers that ``apply`` is a method of."""

# The methods that are wrapped, as Keras has them.
APPLY: Callable[..., Any] = OPTIMIZER.apply
APPLY_SCALED: Callable[..., Any] = keras.optimizers.LossScaleOptimizer.apply
NEXT_SEED: Callable[..., Any] = keras.random.SeedGenerator.next
MAYBE_BUILD: Callable[..., Any] = keras.Layer._maybe_build
ADD_LOSS: Callable[..., Any] = keras.Layer.add_loss
OWN_LOSSES: Callable[..., Any] = keras.Layer._get_own_losses
CLEAR_LOSSES: Callable[..., Any] = keras.Layer._clear_losses


def in_stateless_scope() -> bool:
    """Returns whether this thread computes with values that Keras keeps apart from its variables."""
    return bool(_in_stateless_scope())


def stateless_value(variable: Any) -> Any:
    """Returns the value that Keras keeps apart for a variable, if any."""
    return get_stateless_scope().get_current_value(variable) if _in_stateless_scope() else None
