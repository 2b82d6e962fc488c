"""Stand-in for the placement of Keras variables, until that is here."""

from typing import Any

from keras.src.backend.jax.core import JaxVariable

from stratagem._src.runtime import context


def install() -> None:
    if hasattr(JaxVariable, "_interim"):
        return
    JaxVariable._interim = True
    original = JaxVariable._initialize_layout

    def _initialize_layout(self: Any) -> None:
        if context.has_strategy():
            self._strategy = context.get_strategy()
            self._layout = self._strategy.replica_group.replicated
        else:
            original(self)

    JaxVariable._initialize_layout = _initialize_layout


def strategy_of(variable: Any) -> Any:
    return getattr(variable, "_strategy", None)
