"""``existing_variables``: the variables of an unbuilt Keras object, under the names that they will keep."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import keras

from stratagem._src.integrations.keras.keras_internals import (
    OPTIMIZER,
    KerasObject,
    KerasVariable,
)
from stratagem._src.integrations.keras.plain_variables import twin_of
from stratagem._src.variables.variable import Variable

__all__ = ["existing_variables"]

# Number of variables that building a LossScaleOptimizer creates, between its own and the inner ones.
_SCALES = 2


def existing_variables(unbuilt: KerasObject) -> dict[str, Variable]:
    """Returns the variables that exist, by the index that they will have when the object is built.

    A variable is left out if others may still be created before it: those of built layers that come after
    one that is not built.
    """
    if isinstance(unbuilt, keras.optimizers.LossScaleOptimizer):
        own = list(unbuilt._variables)
        inner = existing_variables(unbuilt.inner_optimizer)
        shifted = {f"{len(own) + _SCALES + int(key):04}": v for key, v in inner.items()}
        return _by_index(own) | shifted
    if isinstance(unbuilt, OPTIMIZER):
        is_appended = type(unbuilt).variables is OPTIMIZER.variables
        return _by_index(unbuilt.variables) if is_appended else {}
    if isinstance(unbuilt, keras.Layer):
        known = {id(v): v for v in _KnownOrder().of(unbuilt)}.values()
        pairs = zip(known, unbuilt.variables, strict=False)
        return _by_index([one for one, _ in takewhile(lambda pair: pair[0] is pair[1], pairs)])
    return {}


def _by_index(variables: list[KerasVariable]) -> dict[str, Variable]:
    return {f"{index:04}": twin_of(v) for index, v in enumerate(variables)}


class _KnownOrder:
    """Walks the variables of a layer in Keras's order, up to the first place where more may come."""

    def __init__(self) -> None:
        self._is_open = False

    def of(self, layer: KerasObject) -> Iterator[KerasVariable]:
        """Yields the variables."""
        if layer.built:
            yield from layer.variables
            return
        yield from layer._trainable_variables
        # Of models, building creates variables of layers only, unless a program overrides it.
        if type(layer).build not in (keras.Model.build, keras.Sequential.build):
            self._is_open = True
            return
        yield from layer._non_trainable_variables
        for generator in layer._seed_generators:
            yield generator.state
        for inner in layer._layers:
            yield from self.of(inner)
            if self._is_open:
                return
