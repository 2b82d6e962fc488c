"""``tf.train.ExponentialMovingAverage``: exponential moving averages (EMA) of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ScalarLike
from stratagem._src.tensorflow_api.conversion import as_tensor, is_float
from stratagem._src.variables.foreign_variables import variable_of
from stratagem._src.variables.variable import Variable, is_own_variable
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["ExponentialMovingAverage"]


class ExponentialMovingAverage:
    """Keeps an average of each variable: ``average = decay * average + (1 - decay) * variable``.

    Call ``apply`` after each step, also in replicas and compiled code. The first call must be where
    variables can be created. Averages are ordinary variables: add them to a checkpoint.

    Differs from TensorFlow: only variables have averages, not other arrays, and ``zero_debias`` raises.

    JAX equivalent: ``optax.incremental_update``.

    >>> import stratagem as sg
    >>> weight = sg.Variable(1.0)
    >>> ema = ExponentialMovingAverage(decay=0.9)
    >>> ema.apply([weight])
    >>> _ = weight.assign(2.0)
    >>> ema.apply([weight])
    >>> round(float(ema.average(weight)), 4)
    1.1

    Args:
        decay: The weight of the previous average in each step.
        num_updates: If given, the decay is at most ``(1 + num_updates) / (10 + num_updates)``.
        zero_debias: Must be false.
        name: The suffix of the averages' names.
    """

    def __init__(
        self,
        decay: ScalarLike,
        num_updates: ScalarLike = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        if zero_debias:
            raise InvalidArgumentError(
                "ExponentialMovingAverage does not support zero_debias=True: averages of variables start "
                "at the variables' values, where TensorFlow does not use it either. Leave it out."
            )
        self._decay = decay
        self._num_updates = num_updates
        self._name = name
        self._averages: list[tuple[Variable, Variable]] = []

    @property
    def name(self) -> str:
        """The suffix of the averages' names."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> None:
        """Updates the averages of variables, and creates missing ones.

        Args:
            var_list: The variables.
        """
        if var_list is None:
            raise InvalidArgumentError(
                "ExponentialMovingAverage.apply needs var_list: there is no global collection of variables."
            )
        decay = as_tensor(self._decay)
        if self._num_updates is not None:
            count = as_tensor(self._num_updates).astype(jnp.float32)
            decay = jnp.minimum(decay, (1.0 + count) / (10.0 + count))
        for given in var_list:
            variable = variable_of(given)
            average = self._made(variable)
            factor = (1.0 - decay).astype(average.dtype)
            average.assign_sub((average.read_value() - variable.read_value()) * factor)

    def _made(self, variable: Any) -> Variable:
        found = self.average(variable)
        if found is not None:
            return found
        if not is_own_variable(variable):
            raise TypeError(
                f"ExponentialMovingAverage.apply takes variables, got {type(variable).__name__}."
            )
        if not is_float(variable.dtype):
            raise TypeError(
                f"ExponentialMovingAverage needs floating-point variables, got {variable.dtype} of "
                f"{variable.name}."
            )
        made = Variable(
            variable.read_value(),
            trainable=False,
            name=self.average_name(variable),
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._averages.append((variable, made))
        return made

    def average(self, var: Any) -> Variable | None:
        """Returns the variable that holds the average, or ``None``."""
        wanted = variable_of(var)
        return next((average for variable, average in self._averages if variable is wanted), None)

    def average_name(self, var: Any) -> str:
        """Returns the name of the average of a variable."""
        return f"{variable_of(var).name.partition(':')[0]}/{self._name}"

    def variables_to_restore(
        self, moving_avg_variables: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Returns the variables to restore, by the names of their averages."""
        given = [variable_of(one) for one in moving_avg_variables or [v for v, _ in self._averages]]
        return {self.average_name(variable): variable for variable in given}
