"""``Mean`` and ``Sum`` of values, and ``MeanMetricWrapper``, the mean of a function of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from stratagem._src.core.types import ArrayLike, DTypeLike, PyTree
from stratagem._src.training.metrics.metric import Metric
from stratagem._src.training.metrics.weighting import as_array, per_sample
from stratagem._src.variables.variable import Variable

__all__ = ["Mean", "MeanMetricWrapper", "RunningMean", "Sum", "divide_or_zero"]


def divide_or_zero(numerator: ArrayLike, denominator: ArrayLike) -> Any:
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

    def __init__(self, name: str = "sum", dtype: DTypeLike = None) -> None:
        super().__init__(name, dtype)
        self.total: Variable = self.add_variable(name="total")

    def update_state(self, values: ArrayLike, sample_weight: ArrayLike = None) -> None:
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
    """A weighted running mean; base class of metrics that are means."""

    def __init__(self, name: str | None = None, dtype: DTypeLike = None) -> None:
        super().__init__(name, dtype)
        self.total: Variable = self.add_variable(name="total")
        self.count: Variable = self.add_variable(name="count")

    def accumulate(self, values: ArrayLike, sample_weight: ArrayLike) -> None:
        """Adds values of samples to the mean."""
        values, weight = per_sample(self.name, values, sample_weight, jnp.mean, self.dtype)
        self.total.assign_add(jnp.sum(values))
        count = jnp.asarray(values.size, self.dtype) if weight is None else jnp.sum(weight)
        self.count.assign_add(count)

    def result(self) -> Any:
        """Returns the mean; zero if there are no values."""
        return divide_or_zero(self.total.read_value(), self.count.read_value())


class Mean(RunningMean):
    """The weighted mean of all values; each sample counts once, regardless of its batch.

    The mean of no values is zero.

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

    def __init__(self, name: str = "mean", dtype: DTypeLike = None) -> None:
        super().__init__(name, dtype)

    def update_state(self, values: ArrayLike, sample_weight: ArrayLike = None) -> None:
        """Adds values.

        Args:
            values: Array whose first dimension is the batch, or a number. Values of one sample are
                averaged first.
            sample_weight: A weight for each sample, for each value, or for all.
        """
        self.accumulate(values, sample_weight)


class MeanMetricWrapper(RunningMean):
    """The weighted mean of a function of labels and predictions.

    Args:
        fn: Takes ``y_true`` and ``y_pred`` and returns one value or several for each sample. A scalar is
            treated as the mean of the batch, and counts for each of its samples.
        name: Its name. Default: the function's name.
        dtype: Element type of the result; default ``float32``.
        **kwargs: More arguments of ``fn``.

    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> metric = sg.metrics.MeanMetricWrapper(lambda y, p: jnp.abs(y - p), name="error")
    >>> float(metric(jnp.array([1.0, 2.0]), jnp.array([1.5, 2.0])))
    0.25
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        dtype: DTypeLike = None,
        **kwargs: PyTree,
    ) -> None:
        super().__init__(name or getattr(fn, "__name__", "mean_of_function"), dtype)
        self._fn = fn
        self._fn_kwargs = kwargs

    def update_state(self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike = None) -> None:
        """Adds labels and predictions.

        Args:
            y_true: The labels.
            y_pred: The predictions.
            sample_weight: A weight for each sample, for each value of the function, or for all.
        """
        values = as_array(self._fn(y_true, y_pred, **self._fn_kwargs))
        if values.ndim == 0 and (sample_weight is None or as_array(sample_weight).ndim == 0):
            values = jnp.broadcast_to(values, _first_dimension(y_pred))
        self.accumulate(values, sample_weight)


def _first_dimension(predictions: ArrayLike) -> tuple[int, ...]:
    if isinstance(predictions, Mapping):
        predictions = next(iter(predictions.values()), ())
    shape: tuple[int, ...] = as_array(predictions).shape
    return shape[:1]
