"""Trains on handwritten digits asynchronously: variables on parameter servers, steps on workers.

Run it with ``stratagem run --workers 2 --ps 1 --chief examples/digits_servers.py``. The chief schedules
steps; each worker takes them at its own pace, with batches of its own; the servers hold the variables and
apply the gradients.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import jax
import numpy as np
import optax
from digits_data import load_digits

import stratagem as sg

LAYERS = (64, 128, 64, 10)


def scores_of(layers: Any, images: Any) -> Any:
    """Returns a score for each digit."""
    for layer in layers[:-1]:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    return images @ layers[-1]["w"] + layers[-1]["b"]


def train(strategy: sg.distribute.Strategy, epochs: int, batch_size: int) -> float:
    """Directs the workers; returns the accuracy on digits that they were not trained with."""
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    train_digits, (test_images, test_labels) = load_digits()
    with strategy.scope():  # variables made here are on the servers
        rng = np.random.default_rng(1)
        layers = [
            {"w": sg.Variable(rng.normal(0, (2 / n) ** 0.5, (n, m))), "b": sg.Variable([0.0] * m)}
            for n, m in itertools.pairwise(LAYERS)
        ]
    optimizer = sg.train.Optimizer(optax.adam, learning_rate=2e-3)

    def replica_step(images: Any, labels: Any) -> Any:
        def loss() -> Any:
            scores = scores_of(layers, images)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        value, gradients = sg.value_and_grad(loss, layers)()
        optimizer.apply(gradients, layers)
        return value

    @sg.function
    def train_step(iterator: Any) -> Any:
        return strategy.run(replica_step, args=next(iterator))

    def worker_batches() -> sg.data.Dataset:
        dataset = sg.data.Dataset.from_tensor_slices(train_digits)
        return dataset.shuffle(2000).repeat().batch(batch_size)

    iterator = iter(coordinator.create_per_worker_dataset(worker_batches))
    for epoch in range(1, epochs + 1):
        num_steps = len(train_digits[0]) // batch_size
        losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(num_steps)]
        coordinator.join()
        print(f"epoch {epoch:3d}  loss {np.mean(coordinator.fetch(losses)):.4f}", flush=True)
    return float((scores_of(layers, test_images).argmax(axis=-1) == test_labels).mean())


def main() -> None:
    """Serves, or directs, as the task of this process says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="of each step of a worker")
    flags = parser.parse_args()

    sg.distribute.Server.serve_task()  # workers and parameter servers end here
    started = time.perf_counter()
    strategy = sg.distribute.ParameterServerStrategy()
    print(f"test accuracy {train(strategy, flags.epochs, flags.batch_size):.1%}")
    print(f"{time.perf_counter() - started:.1f} seconds", flush=True)


if __name__ == "__main__":
    main()
