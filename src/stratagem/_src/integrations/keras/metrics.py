"""Keras metrics under strategies, and metrics of ``stratagem.metrics`` that are given to ``compile``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.keras_internals import Argument, KerasObject
from stratagem._src.integrations.keras.remote_metrics import is_on_servers, update_on_servers
from stratagem._src.integrations.keras.replicas import multi_replica_context
from stratagem._src.training.metrics.metric import Metric

__all__ = ["as_keras_metrics", "skip_empty_updates"]

_OURS = Metric.__module__.rpartition(".")[0]


def as_keras_metrics(metrics: PyTree) -> Any:
    """Returns the metrics for ``compile``, with ``stratagem.metrics`` replaced by ``keras.metrics``.

    Programs for TensorFlow pass ``tf.metrics`` to ``compile``: there it is ``tf.keras.metrics``.

    Raises:
        InvalidArgumentError: If a metric is a user's subclass of ``stratagem.metrics.Metric``.
    """
    return keras.tree.map_structure(
        lambda one: _as_keras_metric(one) if isinstance(one, Metric) else one, metrics
    )


def _as_keras_metric(metric: Metric) -> Any:
    kind = type(metric)
    counterpart = getattr(keras.metrics, kind.__name__, None)
    if counterpart is None or kind.__module__.rpartition(".")[0] != _OURS:
        raise InvalidArgumentError(
            f"compile() needs metrics of keras.metrics, got {kind.__name__}, which derives from "
            "stratagem.metrics.Metric. Derive it from keras.metrics.Metric."
        )
    args, kwargs = metric.constructor_arguments
    return counterpart(*args, **kwargs)


def skip_empty_updates() -> None:
    """Makes ``update_state`` of all metrics, also of later subclasses, skip a replica without rows.

    The mean of zero rows is NaN, which would stay in the state forever.
    """
    original = keras.Metric.__init_subclass__

    def init_subclass(cls: KerasObject, /, **kwargs: Argument) -> None:
        original(**kwargs)
        _wrap(cls)

    keras.Metric.__init_subclass__ = classmethod(init_subclass)
    for cls in _subclasses(keras.Metric):
        _wrap(cls)


def _subclasses(cls: type) -> set[type]:
    found: set[type] = set(cls.__subclasses__())
    return found.union(*map(_subclasses, found))


def _wrap(cls: KerasObject) -> None:
    if "update_state" in vars(cls):
        cls.update_state = _skipping_empty(vars(cls)["update_state"])


def _skipping_empty(update_state: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update_state)
    def update(self: KerasObject, *args: Argument, **kwargs: Argument) -> Any:
        if multi_replica_context() is not None and any(
            getattr(array, "shape", ())[:1] == (0,) for array in keras.tree.flatten((args, kwargs))
        ):
            return None
        if is_on_servers(self):
            return update_on_servers(self, update_state, *args, **kwargs)
        return update_state(self, *args, **kwargs)

    return update
