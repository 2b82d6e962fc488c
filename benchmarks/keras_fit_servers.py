"""The parameter-server row of ``keras_fit.py``: ``fit`` with an embedding that servers hold.

Also the same step written by hand and scheduled by ``ClusterCoordinator``, which shows what ``fit`` adds;
and TensorFlow's coordinator with that step, in an interpreter that has TensorFlow.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from keras_server_data import NUM_IDS, NUM_ROWS, RATE, WIDTH, make_batches
from parameter_server import cluster_of, strategy_on

import stratagem as sg

__all__ = ["NUM_WORKERS", "steps_per_second", "tensorflow_steps_per_second"]

NUM_WORKERS = (1, 2, 4)
STEPS = 400


def dataset_fn(context: Any = None) -> sg.data.Dataset:
    return sg.data.Dataset.from_tensor_slices(make_batches()).repeat()


def make_model() -> Any:
    keras = sg.keras
    model = keras.Sequential(
        [
            keras.Input((NUM_IDS,), dtype="int32"),
            keras.layers.Embedding(NUM_ROWS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(RATE), "mse")
    return model


def fitting(strategy: sg.distribute.ParameterServerStrategy) -> Callable[[], None]:
    """Returns a function that trains for ``STEPS`` steps by ``fit``."""
    with strategy.scope():
        model = make_model()
    data = sg.keras.utils.experimental.DatasetCreator(dataset_fn)
    return lambda: model.fit(data, steps_per_epoch=STEPS, verbose=0)


def scheduling(strategy: sg.distribute.ParameterServerStrategy) -> Callable[[], None]:
    """Returns a function that schedules ``STEPS`` steps of a function."""
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = sg.Variable(np.full((NUM_ROWS, WIDTH), 0.01, np.float32))
        kernel = sg.Variable(np.full((NUM_IDS * WIDTH, 1), 0.01, np.float32))
        bias = sg.Variable(np.zeros(1, np.float32))

    @sg.function
    def step(iterator: Any) -> Any:
        ids, targets = next(iterator)

        def loss() -> Any:
            rows = table.sparse_read(ids).reshape(len(ids), -1)
            return ((rows @ kernel + bias - targets) ** 2).mean()

        value, gradients = sg.value_and_grad(loss, [table, kernel, bias])()
        rows = gradients[0]
        table.scatter_sub(sg.IndexedSlices(RATE * rows.values, rows.indices))
        kernel.assign_sub(RATE * gradients[1])
        bias.assign_sub(RATE * gradients[2])
        return value

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    def train() -> None:
        for _ in range(STEPS):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    return train


def steps_per_second(num_workers: int, rounds: int) -> dict[str, float]:
    """Returns the steps of all workers in a second, by ``fit`` and by hand; rounds are interleaved."""
    with cluster_of(num_workers, 1) as spec:
        strategy = strategy_on(spec)
        sides = {"fit": fitting(strategy), "by hand": scheduling(strategy)}
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds + 1):  # the first compiles
            for name, train in sides.items():
                start = time.perf_counter()
                train()
                figures[name].append(STEPS / (time.perf_counter() - start))
        strategy.client.close()
    return {name: statistics.median(values[1:]) for name, values in figures.items()}


def tensorflow_steps_per_second(python: str, num_workers: int, rounds: int) -> float:
    """Returns the steps of all workers in a second with TensorFlow's coordinator."""
    script = Path(__file__).with_name("keras_fit_servers_tensorflow.py")
    command = [python, str(script), str(num_workers), str(STEPS), str(rounds)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))
