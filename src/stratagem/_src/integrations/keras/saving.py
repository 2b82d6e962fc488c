"""The variables of Keras objects in checkpoints."""

from __future__ import annotations

from typing import Any

from stratagem._src.integrations.keras.plain_variables import twin_of
from stratagem._src.variables.stand_ins import NotBuiltError
from stratagem._src.variables.variable import Variable

__all__ = ["variables_of"]


def variables_of(keras_object: Any) -> dict[str, Variable]:
    """Returns the variables of a layer, model, optimizer or metric by their numbers.

    Their paths would not do: Keras numbers objects as they come, others in the next program.

    Raises:
        NotBuiltError: If it is not built, and may yet get more.
    """
    if not getattr(keras_object, "built", True):
        raise NotBuiltError(
            "A Checkpoint saves Keras objects that have all their variables, but "
            f"{keras_object.name!r} is not built. Call model.build(input_shape), or "
            "optimizer.build(model.trainable_variables), before."
        )
    return {f"{index:04}": twin_of(v) for index, v in enumerate(keras_object.variables)}
