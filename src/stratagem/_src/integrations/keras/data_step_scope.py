"""``DataStepScope``: the values of variables while a step that changes them in place is traced.

``train_step(self, data)`` reads and assigns variables, and takes gradients with a ``GradientTape``. In this
scope a read returns the traced value and is recorded on tapes; an assignment stays in the scope.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras

from stratagem._src.core.types import Tensor
from stratagem._src.integrations.keras.keras_internals import (
    KerasVariable,
    current_stateless_scope,
)
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.variables import frames

__all__ = ["DataStepScope", "is_read_from_step"]


class DataStepScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """A ``keras.StatelessScope`` whose reads are recorded on tapes, and that knows what was assigned.

    Attributes:
        assigned: The variables that were assigned, by their ids.
    """

    def __init__(self, state_mapping: Any = None) -> None:
        super().__init__(state_mapping, collect_losses=True)
        self.assigned: dict[int, Any] = {}

    def get_current_value(self, variable: KerasVariable) -> Any:
        """Returns the value for a reader; ``None`` if the variable has none here."""
        value = self.value_of(variable)
        return value if value is None else frames.record_read(variable, value)

    def value_of(self, variable: KerasVariable) -> Any:
        """Returns the value of a variable; zeros if it is created here; ``None`` for other variables."""
        value = super().get_current_value(variable)
        if value is None and _is_uninitialized(variable):
            # The step is then traced for shapes alone. The read may be in the body of a lax.scan.
            value = evaluate_now(lambda: jnp.zeros(variable._shape, variable._dtype))
            super().add_update((variable, value))
        return value

    def add_update(self, update: tuple[KerasVariable, Tensor]) -> None:
        """Assigns a variable in the scope."""
        super().add_update(update)
        self.assigned[id(update[0])] = update[0]


def is_read_from_step(variable: KerasVariable) -> bool:
    """Returns whether the value of a variable is in a ``DataStepScope``.

    Tapes then record the Keras variable itself, and elsewhere the variable that holds its value.
    """
    scope = current_stateless_scope()
    return isinstance(scope, DataStepScope) and scope.value_of(variable) is not None


def _is_uninitialized(variable: KerasVariable) -> bool:
    return getattr(variable, "twin", None) is None and variable.__dict__.get("_value") is None
