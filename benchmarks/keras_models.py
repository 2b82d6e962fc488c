"""The models of ``keras_fit.py`` and their data, for any backend of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

ROWS_PER_REPLICA = 32
STEPS = 60

SHAPES = {"dense": (20,), "digits": (64,), "images": (28, 28, 1), "sequence": (20,)}


def make_model(name: str) -> Any:
    layers = keras.layers
    stacks = {
        "dense": [layers.Dense(16, activation="relu")],
        "digits": [
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(64, activation="relu"),
        ],
        "images": [
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
        ],
        "sequence": [layers.Embedding(100, 16), layers.LSTM(32)],
    }
    model = keras.Sequential(
        [keras.Input(SHAPES[name]), *stacks[name], layers.Dense(10)], name=name
    )
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def make_data(name: str, num_replicas: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    rows = STEPS * ROWS_PER_REPLICA * num_replicas
    shape = (rows, *SHAPES[name])
    x = random.integers(0, 100, shape) if name == "sequence" else random.random(shape, np.float32)
    return x.astype(np.int32 if name == "sequence" else np.float32), random.integers(0, 10, rows)


def fit(model: Any, data: tuple[np.ndarray, np.ndarray], num_replicas: int) -> None:
    """Trains for an epoch."""
    model.fit(*data, batch_size=ROWS_PER_REPLICA * num_replicas, verbose=0, shuffle=False)
