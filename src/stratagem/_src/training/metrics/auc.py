"""``AUC``: the area under the ROC or precision-recall curve, from counts at many thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError
from stratagem._src.core.types import ArrayLike, DTypeLike, PyTree, Tensor
from stratagem._src.training.metrics.metric import Metric
from stratagem._src.training.metrics.reductions import divide_or_zero
from stratagem._src.training.metrics.weighting import as_array, same_rank, same_shape
from stratagem._src.variables.variable import Variable

__all__ = ["AUC"]

_EPSILON = 1e-7
_CURVES = ("ROC", "PR")
_SUMMATIONS = ("interpolation", "minoring", "majoring")


class AUC(Metric):
    """The area under the ROC or the precision-recall curve, approximated by a sum over thresholds.

    If a prediction is NaN, the result is NaN.

    Args:
        num_thresholds: Number of thresholds, spread evenly over [0, 1].
        curve: ``"ROC"`` or ``"PR"``.
        summation_method: ``"interpolation"``, or ``"minoring"`` or ``"majoring"`` for a lower or upper
            bound of each step.
        name: Its name.
        dtype: Element type of the state; default ``float32``.
        thresholds: Thresholds in [0, 1] to use in place of ``num_thresholds``.
        multi_label: Whether each column of the labels is a classifier of its own; the result is then the
            mean of their areas.
        num_labels: Number of columns; needed for ``multi_label``.
        label_weights: A weight for each column.
        from_logits: Whether predictions are logits, else probabilities in [0, 1].

    Differs from tf.distribute: ``num_labels`` is needed for ``multi_label``, because state is created
    with the metric.

    >>> import stratagem as sg
    >>> metric = sg.metrics.AUC(num_thresholds=3)
    >>> metric.update_state([0, 0, 1, 1], [0, 0.5, 0.3, 0.9])
    >>> float(metric.result())
    0.75
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str = "auc",
        dtype: DTypeLike = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: ArrayLike = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype)
        self.curve: str = _one_of("curve", curve.upper(), _CURVES)
        self.summation_method: str = _one_of(
            "summation_method", summation_method.lower(), _SUMMATIONS
        )
        if multi_label != (num_labels is not None):
            raise InvalidArgumentError(
                "num_labels is the number of columns of y_pred; give it with multi_label=True and only "
                f"then, got multi_label={multi_label} and num_labels={num_labels}."
            )
        inner = _inner_thresholds(num_thresholds, thresholds)
        even = np.arange(len(inner) + 2) / (len(inner) + 1)
        self._evenly = len(inner) > 0 and np.allclose([0, *inner, 1], even, atol=_EPSILON)
        self._thresholds = np.array([-_EPSILON, *inner, 1 + _EPSILON])
        self.num_thresholds: int = len(self._thresholds)
        self.multi_label: bool = multi_label
        self.num_labels: int | None = num_labels
        self.label_weights: Any = (
            None if label_weights is None else np.asarray(label_weights, self.dtype)
        )
        self._from_logits = from_logits
        shape = (self.num_thresholds,) if num_labels is None else (self.num_thresholds, num_labels)
        self.true_positives: Variable = self.add_variable(shape, name="true_positives")
        self.false_positives: Variable = self.add_variable(shape, name="false_positives")
        self.true_negatives: Variable = self.add_variable(shape, name="true_negatives")
        self.false_negatives: Variable = self.add_variable(shape, name="false_negatives")

    @property
    def thresholds(self) -> list[float]:
        """The thresholds, with one below 0 and one above 1."""
        return [float(threshold) for threshold in self._thresholds]

    def update_state(self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike = None) -> None:
        """Adds labels and predictions.

        Args:
            y_true: Labels; nonzero means positive.
            y_pred: Predictions of the same shape.
            sample_weight: A weight for each sample, for each prediction, or for all.
        """
        labels, predictions = same_shape(self.name, y_true, y_pred)
        predictions = predictions.astype(self.dtype)
        if self._from_logits:
            predictions = jax.nn.sigmoid(predictions)
        weights = self._weights(predictions, sample_weight)
        if self.multi_label and predictions.shape[1:] != (self.num_labels,):
            raise ShapeMismatchError(
                f"Metric {self.name!r} needs y_pred with {self.num_labels} columns, got shape "
                f"{predictions.shape}."
            )
        if not self.multi_label:
            labels, predictions, weights = (
                array.reshape((-1,)) for array in (labels, predictions, weights)
            )
        positive = (labels != 0).astype(self.dtype)
        buckets = self._buckets(predictions)
        of_positives = self._above(positive * weights, buckets)
        of_negatives = self._above((1 - positive) * weights, buckets)
        self.true_positives.assign_add(of_positives)
        self.false_positives.assign_add(of_negatives)
        self.false_negatives.assign_add(jnp.sum(positive * weights, axis=0) - of_positives)
        self.true_negatives.assign_add(jnp.sum((1 - positive) * weights, axis=0) - of_negatives)

    def _weights(self, predictions: ArrayLike, sample_weight: ArrayLike) -> Any:
        weights = jnp.where(jnp.isnan(predictions), jnp.nan, jnp.ones((), self.dtype))
        if sample_weight is not None:
            given = as_array(sample_weight).astype(self.dtype)
            if given.ndim:
                _, given = same_rank(predictions, given[..., None], expand_vectors=False)
            if given.ndim > weights.ndim or any(
                size not in (1, wanted)
                for size, wanted in zip(given.shape[::-1], weights.shape[::-1], strict=False)
            ):
                raise ShapeMismatchError(
                    f"Metric {self.name!r} needs one sample_weight for each sample, for each prediction, "
                    f"or for all, got shape {given.shape} for predictions of shape {weights.shape}."
                )
            weights = weights * given
        if self.label_weights is not None and not self.multi_label:
            weights = weights * self.label_weights
        return weights

    def _buckets(self, predictions: ArrayLike) -> Any:
        """Returns the index of the last threshold that each prediction is above."""
        if not self._evenly:
            thresholds = jnp.asarray(self._thresholds, self.dtype)
            return jnp.searchsorted(thresholds, predictions, side="left") - 1
        scaled = jnp.clip(predictions, 0, 1) * (self.num_thresholds - 1)
        return jnp.maximum(jnp.ceil(scaled) - 1, 0).astype(jnp.int32)

    def _above(self, amounts: ArrayLike, buckets: ArrayLike) -> Any:
        """Returns the sum of the amounts above each threshold."""

        def of_column(amounts: ArrayLike, buckets: ArrayLike) -> Any:
            in_bucket = jax.ops.segment_sum(amounts, buckets, self.num_thresholds)
            return jnp.cumsum(in_bucket[::-1])[::-1]

        of_all = jax.vmap(of_column, in_axes=1, out_axes=1) if self.multi_label else of_column
        return of_all(amounts, buckets)

    def result(self) -> Any:
        """Returns the area."""
        positives, found = self.true_positives.read_value(), self.false_positives.read_value()
        missed, rejected = self.false_negatives.read_value(), self.true_negatives.read_value()
        recall = divide_or_zero(positives, positives + missed)
        if self.curve == "ROC":
            areas = self._areas(divide_or_zero(found, found + rejected), recall)
        elif self.summation_method == "interpolation":
            areas = _precision_areas(positives, found, missed)
        else:
            areas = self._areas(recall, divide_or_zero(positives, positives + found))
        area = jnp.sum(areas, axis=0)
        if not self.multi_label:
            return area
        if self.label_weights is None:
            return jnp.mean(area)
        return divide_or_zero(jnp.sum(area * self.label_weights), jnp.sum(self.label_weights))

    def _areas(self, x: ArrayLike, y: ArrayLike) -> Any:
        if self.summation_method == "interpolation":
            heights = (y[:-1] + y[1:]) / 2
        elif self.summation_method == "minoring":
            heights = jnp.minimum(y[:-1], y[1:])
        else:
            heights = jnp.maximum(y[:-1], y[1:])
        return (x[:-1] - x[1:]) * heights


def _precision_areas(
    true_positives: Tensor, false_positives: Tensor, false_negatives: Tensor
) -> Any:
    """Returns the area under each piece of the precision-recall curve.

    Between two thresholds true positives and predicted positives are interpolated linearly (Davis and
    Goadrich, 2006). So the precision is ``slope + intercept / predicted``, whose integral contains a
    logarithm.
    """
    predicted = true_positives + false_positives
    gained = true_positives[:-1] - true_positives[1:]
    slope = divide_or_zero(gained, jnp.maximum(predicted[:-1] - predicted[1:], 0))
    intercept = true_positives[1:] - slope * predicted[1:]
    both = (predicted[:-1] > 0) & (predicted[1:] > 0)
    ratio = jnp.where(both, divide_or_zero(predicted[:-1], predicted[1:]), 1)
    positives = jnp.maximum(true_positives[1:] + false_negatives[1:], 0)
    return divide_or_zero(slope * (gained + intercept * jnp.log(ratio)), positives)


def _inner_thresholds(num_thresholds: int, thresholds: Sequence[float] | None) -> list[float]:
    if thresholds is not None:
        inner = sorted(float(threshold) for threshold in thresholds)
        if inner and not (inner[0] >= 0 and inner[-1] <= 1):
            raise InvalidArgumentError(f"thresholds must be in [0, 1], got {list(thresholds)}.")
        return inner
    if num_thresholds <= 1:
        raise InvalidArgumentError(f"num_thresholds must be at least 2, got {num_thresholds}.")
    return [(index + 1) / (num_thresholds - 1) for index in range(num_thresholds - 2)]


def _one_of(what: str, given: str, allowed: tuple[str, ...]) -> str:
    if given not in allowed:
        raise InvalidArgumentError(f"{what} must be one of {list(allowed)}, got {given!r}.")
    return given
