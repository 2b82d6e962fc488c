"""Trainings that are to give the same numbers under a strategy as without."""

import contextlib

import jax
import numpy as np

import stratagem as sg

keras = sg.keras

# Of Keras' own variables.
KERAS_ARRAYS = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"

__all__ = [
    "KERAS_ARRAYS",
    "assert_same",
    "keras",
    "make_data",
    "mirrored",
    "scope_of",
    "small_model",
]


def mirrored(count):
    return sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def scope_of(strategy):
    """Returns the strategy's scope, with seeds set; ``None`` for Keras alone."""
    keras.utils.set_random_seed(7)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def make_data(rows=24, features=3, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, features)).astype(np.float32)
    y = (x @ np.arange(1.0, features + 1.0)[:, None] + 0.5).astype(np.float32)
    return x, y


def small_model(*layers):
    return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])


def assert_same(train, strategy, *, rtol=2e-5, atol=2e-6):
    """Checks that ``train(strategy)`` returns the same numbers as ``train(None)``."""
    expected, received = train(None), train(strategy)
    expected_leaves, structure = jax.tree.flatten(expected)
    received_leaves, received_structure = jax.tree.flatten(received)
    assert received_structure == structure
    for one, other in zip(expected_leaves, received_leaves, strict=True):
        np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=rtol, atol=atol)
