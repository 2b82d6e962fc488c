"""What a ``train_step`` of one's own must take."""

from __future__ import annotations

import inspect
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["check_takes_state"]


def check_takes_state(model: Any, name: str) -> None:
    """Checks that a step of a model takes the state and the data, as Keras on JAX gives them.

    Args:
        model: The Keras model.
        name: ``train_step``, ``test_step`` or ``predict_step``.

    Raises:
        InvalidArgumentError: If it takes the data only, as on TensorFlow.
    """
    try:
        signature = inspect.signature(getattr(model, name))
    except ValueError:
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        is_predict = name == "predict_step"
        returned = "predictions, non_trainable_variables" if is_predict else "logs, state"
        raise InvalidArgumentError(
            f"Keras on JAX calls {name}(self, state, data), which returns ({returned}), but "
            f"that of {type(model).__name__} takes {signature}. {name}(self, data) is of Keras on "
            "TensorFlow: there variables change in place, here they come and go in `state`. "
            "docs/keras.md has an example."
        ) from error
