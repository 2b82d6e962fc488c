"""What is changed in Keras, once it is loaded, so that its objects know strategies."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.integrations.keras.door import check_backend
from stratagem._src.integrations.keras.keras_internals import COMMON_VARIABLE
from stratagem._src.runtime import context

__all__ = ["bridge"]


def bridge() -> None:
    """Makes ``keras.Variable(...)`` ask the current strategy which kind of variable to build."""
    if keras.config.backend() == "jax":
        # Imported when used: it needs the backend.
        from stratagem._src.integrations.keras.placed_variable import PlacedVariable, check_strategy

        def create(cls: type, *args: Any, **kwargs: Any) -> Any:
            if not context.has_strategy():
                return object.__new__(cls)
            strategy: Any = context.get_strategy()
            check_strategy(strategy)
            if cls not in (keras.Variable, PlacedVariable):
                raise UnsupportedError(
                    f"In the scope of a strategy Keras variables are of the class keras.Variable, got "
                    f"{cls.__name__}. Create it outside of the scope, or use keras.Variable."
                )
            made = object.__new__(PlacedVariable)
            made.strategy = strategy
            return made

        keras.Variable.__new__ = create
    else:

        def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
            if context.has_strategy():
                check_backend(keras)
            return object.__new__(cls)

        COMMON_VARIABLE.__new__ = refuse
