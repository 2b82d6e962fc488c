"""Both libraries, seen alike. TensorFlow is imported only by who asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from compared_cases import Library

__all__ = ["stratagem", "tensorflow"]


def tensorflow() -> Library:
    """Returns TensorFlow."""
    import tensorflow as tf

    def gradients(function: Any, values: list[Any], weights: list[Any]) -> list[Any]:
        with tf.GradientTape() as tape:
            for value in values:
                tape.watch(value)
            results = function(*values)
        found = tape.gradient(results, values, output_gradients=[tf.constant(w) for w in weights])
        return [None if g is None else tf.convert_to_tensor(g) for g in found]

    def leaves(result: Any) -> list[Any]:
        return [leaf for leaf in tf.nest.flatten(result) if leaf is not None]

    return Library(tf, tf.constant, leaves, gradients)


def stratagem() -> Library:
    """Returns what stands in for it."""
    import jax

    import stratagem as sg

    def gradients(function: Any, values: list[Any], weights: list[Any]) -> list[Any]:
        # As one program: a part of the comparison is of compiled code, and the compiler is called once.
        @jax.jit
        def of(values: list[Any]) -> Any:
            return jax.vjp(function, *values)[1](weights)

        return list(of(values))

    def leaves(result: Any) -> list[Any]:
        return [leaf for leaf in sg.nest.flatten(result) if leaf is not None]

    def tensor(array: np.ndarray) -> Any:
        return sg.constant(array)

    return Library(sg, tensor, leaves, gradients)
