"""``Mean`` and ``Sum`` of values, and ``MeanMetricWrapper``, the mean of a function of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from stratagem._src.training.metrics.metric import Metric
from stratagem._src.training.metrics.weighting import as_array, per_sample
from stratagem._src.variables.variable import Variable

__all__ = ["Mean", "MeanMetricWrapper", "RunningMean", "Sum", "divide_or_zero"]


def divide_or_zero(numerator: Any, denominator: Any) -> Any:
    """Returns the quotient, and zero where the denominator is zero."""
    zero = denominator == 0
    return jnp.where(zero, 0, numerator / jnp.where(zero, 1, denominator))


class Sum(Metric):
    """The weighted sum of all values.

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> metric = sg.metrics.Sum()
    >>> metric.update_state([1, 3, 5, 7], sample_weight=[1, 1, 0, 0])
    >>> float(metric.result())
    4.0
    """

    def __init__(self, name: str = "sum", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.total: Variable = self.add_variable(name="total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Adds values.

        Args:
            values: Array or number.
            sample_weight: A weight for each sample, for each value, or for all.
        """
        values, _ = per_sample(self.name, values, sample_weight, jnp.sum, self.dtype)
        self.total.assign_add(jnp.sum(values))

    def result(self) -> Any:
        """Returns the sum."""
        return self.total.read_value()


class RunningMean(Metric):
    """A weighted mean of values, of whatever they are computed from."""

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.total: Variable = self.add_variable(name="total")
        self.count: Variable = self.add_variable(name="count")

    def take_in(self, values: Any, sample_weight: Any) -> None:
        """Adds values of samples to the mean."""
        values, weight = per_sample(self.name, values, sample_weight, jnp.mean, self.dtype)
        self.total.assign_add(jnp.sum(values))
        count = jnp.asarray(values.size, self.dtype) if weight is None else jnp.sum(weight)
        self.count.assign_add(count)

    def result(self) -> Any:
        """Returns the mean; zero of nothing."""
        return divide_or_zero(self.total.read_value(), self.count.read_value())


class Mean(RunningMean):
    """The weighted mean of all values; each sample counts once, whatever batch it came in.

    The mean of nothing is zero.

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     loss = sg.metrics.Mean(name="loss")
    >>> batches = sg.data.Dataset.from_tensor_slices([1.0, 2.0, 6.0]).batch(3)
    >>> for batch in strategy.experimental_distribute_dataset(batches):
    ...     strategy.run(loss.update_state, args=(batch,))
    >>> float(loss.result())
    3.0
    """

    def __init__(self, name: str = "mean", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Takes in values.

        Args:
            values: Array whose first dimension counts samples, or a number. Values of one sample are
                averaged first.
            sample_weight: A weight for each sample, for each value, or for all.
        """
        self.take_in(values, sample_weight)


class MeanMetricWrapper(RunningMean):
    """The weighted mean of a function of labels and predictions.

    Args:
        fn: Takes ``y_true`` and ``y_pred`` and returns a value for each sample, or several. A single
            number is taken for the mean of the batch, and counts for each of its samples.
        name: Its name; default that of the function.
        dtype: Element type of the result; default ``float32``.
        **kwargs: More arguments of ``fn``.

    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> metric = sg.metrics.MeanMetricWrapper(lambda y, p: jnp.abs(y - p), name="error")
    >>> float(metric(jnp.array([1.0, 2.0]), jnp.array([1.5, 2.0])))
    0.25
    """

    def __init__(
        self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(name or getattr(fn, "__name__", "mean_of_function"), dtype)
        self._fn = fn
        self._fn_kwargs = kwargs

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes in labels and predictions.

        Args:
            y_true: What is right.
            y_pred: What was predicted.
            sample_weight: A weight for each sample, for each value of the function, or for all.
        """
        values = as_array(self._fn(y_true, y_pred, **self._fn_kwargs))
        if values.ndim == 0 and (sample_weight is None or as_array(sample_weight).ndim == 0):
            values = jnp.broadcast_to(values, _first_dimension(y_pred))
        self.take_in(values, sample_weight)


def _first_dimension(predictions: Any) -> tuple[int, ...]:
    if isinstance(predictions, Mapping):
        predictions = next(iter(predictions.values()), ())
    shape: tuple[int, ...] = as_array(predictions).shape
    return shape[:1]
