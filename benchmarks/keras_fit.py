"""Keras' ``fit`` under ``MirroredStrategy`` against one device and ``keras.distribution.DataParallel``.

All sides train the same model on the same arrays with the same batches, input and callbacks included.
Rounds of the sides are interleaved; a figure is the median time of a step. With ``--tensorflow-python``
naming an interpreter that has TensorFlow, its Keras runs under its MirroredStrategy too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import stratagem as sg

ROWS_PER_REPLICA = 32
STEPS = 60


class Case(NamedTuple):
    """A model, and how slow its step may be in comparison with ``DataParallel``."""

    name: str
    shape: tuple[int, ...]
    limit: float


CASES = {
    "dense": Case("dense: 20-16-10", (20,), 0.7),
    "digits": Case("dense: 64-128-64-10, dropout", (64,), 0.7),
    "images": Case("2 convolutions, 28x28, batch normalisation", (28, 28, 1), 1.0),
    "sequence": Case("embedding, LSTM of 32, 20 tokens", (20,), 1.0),
}


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
        [keras.Input(CASES[name].shape), *stacks[name], layers.Dense(10)], name=name
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
    shape = (rows, *CASES[name].shape)
    x = random.integers(0, 100, shape) if name == "sequence" else random.random(shape, np.float32)
    return x.astype(np.int32 if name == "sequence" else np.float32), random.integers(0, 10, rows)


def fitting(model: Any, data: tuple[np.ndarray, np.ndarray], num_replicas: int) -> float:
    """Trains for an epoch and returns the seconds of a step."""
    start = time.perf_counter()
    model.fit(*data, batch_size=ROWS_PER_REPLICA * num_replicas, verbose=0, shuffle=False)
    return (time.perf_counter() - start) / STEPS


def sides(name: str, num_replicas: int) -> dict[str, Callable[[], float]]:
    data = make_data(name, num_replicas)
    parallel = keras.distribution.DataParallel(
        devices=[f"cpu:{i}" for i in range(num_replicas)], auto_shard_dataset=False
    )
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    one_device = make_model(name)
    with parallel.scope():
        distributed = make_model(name)
    with strategy.scope():
        ours = make_model(name)

    def fit_distributed() -> float:
        with parallel.scope():
            return fitting(distributed, data, num_replicas)

    return {
        "one device": lambda: fitting(one_device, data, num_replicas),
        "DataParallel": fit_distributed,
        "stratagem": lambda: fitting(ours, data, num_replicas),
    }


def tensorflow_seconds(python: str, name: str, num_replicas: int, rounds: int) -> float:
    script = Path(__file__).with_name("keras_fit_tensorflow.py")
    command = [python, str(script), name, str(num_replicas), str(rounds)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--tensorflow-python", help="an interpreter that has TensorFlow")
    options = parser.parse_args()
    sg.config.set_num_cpu_devices(max(options.replicas))
    print(
        f"{'model':44} devices  one device  DataParallel  stratagem  of DataParallel  limit"
        + ("  tensorflow  of tensorflow" if options.tensorflow_python else "")
    )
    for name in options.cases:
        for num_replicas in options.replicas:
            runs = sides(name, num_replicas)
            times: dict[str, list[float]] = {side: [] for side in runs}
            for round_ in range(options.rounds + 1):
                for side, run in runs.items():
                    seconds = run()
                    if round_:  # the first one compiles
                        times[side].append(seconds)
            one, parallel, ours = (statistics.median(times[side]) * 1e6 for side in runs)
            line = (
                f"{CASES[name].name:44} {num_replicas:7}  {one:7.0f} us    {parallel:7.0f} us"
                f" {ours:7.0f} us  {ours / parallel:15.2f}  {CASES[name].limit:5.2f}"
            )
            if options.tensorflow_python:
                theirs = 1e6 * tensorflow_seconds(
                    options.tensorflow_python, name, num_replicas, options.rounds
                )
                line += f"  {theirs:7.0f} us  {ours / theirs:13.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
