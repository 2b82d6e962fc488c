"""Metrics of Keras in replicas: what has no rows changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from stratagem._src.integrations.keras.replicas import one_of_several

__all__ = ["skip_empty_updates"]


def skip_empty_updates() -> None:
    """Makes ``update_state`` of all metrics, also of those to come, leave out a replica without rows.

    A mean of no rows is not a number, and would stay in the state for good.
    """
    original = keras.Metric.__init_subclass__

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        original(**kwargs)
        _wrap(cls)

    keras.Metric.__init_subclass__ = classmethod(init_subclass)
    for cls in _derived(keras.Metric):
        _wrap(cls)


def _derived(cls: type) -> set[type]:
    found: set[type] = set(cls.__subclasses__())
    return found.union(*map(_derived, found))


def _wrap(cls: Any) -> None:
    if "update_state" in vars(cls):
        cls.update_state = _of_rows(vars(cls)["update_state"])


def _of_rows(update_state: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update_state)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if one_of_several() is not None and any(
            getattr(array, "shape", ())[:1] == (0,) for array in keras.tree.flatten((args, kwargs))
        ):
            return None
        return update_state(self, *args, **kwargs)

    return update
