"""Trains on handwritten digits with a loop of its own: dataset, optimizer, metrics, checkpoint, resume.

Run it with ``python examples/digits_loop.py --directory /tmp/digits``. Every epoch is saved: end it with
Ctrl-C and run it again, and it goes on after the last epoch that was saved, to the same numbers.
``stratagem run --workers 2 examples/digits_loop.py --directory /tmp/digits`` trains it in two processes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from typing import Any

import jax
import numpy as np
import optax
from digits_data import load_digits

import stratagem as sg

LAYERS = (64, 128, 64, 10)
WHAT_NEXT = """
try next (from .venv/bin, if make has installed it):
  python examples/digits_fit.py       the same with Keras' compile and fit
  python examples/digits_flax.py      the same with flax and optax, and no variables of ours
  stratagem run --workers 2 examples/digits_loop.py --directory /tmp/digits
                                      this script in two processes, in step
  stratagem run --workers 2 --ps 1 --chief examples/digits_servers.py
                                      parameter servers, asynchronously
  python examples/language_model.py   a small transformer that learns to write
more in examples/README.md"""


def scores_of(layers: Any, images: Any) -> Any:
    """Returns a score for each digit."""
    for layer in layers[:-1]:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    return images @ layers[-1]["w"] + layers[-1]["b"]


def train(strategy: sg.distribute.Strategy, epochs: int, batch_size: int, directory: str) -> float:
    """Trains from what the directory has on; returns the accuracy on digits not trained with."""
    train_digits, test_digits = map(sg.data.Dataset.from_tensor_slices, load_digits())
    with strategy.scope():  # variables made here have a copy on every device
        rng = np.random.default_rng(1)
        layers = [
            {"w": sg.Variable(rng.normal(0, (2 / n) ** 0.5, (n, m))), "b": sg.Variable([0.0] * m)}
            for n, m in itertools.pairwise(LAYERS)
        ]
        epoch, loss = sg.Variable(0), sg.metrics.Mean()
        accuracy = sg.metrics.SparseCategoricalAccuracy()
    optimizer = sg.train.Optimizer(optax.adam, learning_rate=2e-3)
    checkpoint = sg.train.Checkpoint(layers=layers, optimizer=optimizer, epoch=epoch)
    if latest := sg.train.latest_checkpoint(directory):
        checkpoint.restore(latest)
        print(f"goes on after epoch {int(epoch)}, from {latest}")

    def replica_step(images: Any, labels: Any) -> None:  # with this replica's part of a batch
        def average_loss() -> Any:
            scores = scores_of(layers, images)
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            return sg.nn.compute_average_loss(losses, global_batch_size=batch_size), losses

        (_, losses), gradients = sg.value_and_grad(average_loss, layers, has_aux=True)()
        optimizer.apply(gradients, layers)  # sums the gradients of the replicas
        loss.update_state(losses)

    train_step = sg.function(lambda batch: strategy.run(replica_step, args=batch))
    test_step = sg.function(lambda x, y: accuracy.update_state(y, scores_of(layers, x)))
    while int(epoch) < epochs:
        shuffled = train_digits.shuffle(2000, seed=int(epoch)).batch(
            batch_size, drop_remainder=True
        )
        for batch in strategy.experimental_distribute_dataset(shuffled):
            train_step(batch)
        epoch.assign_add(1)
        checkpoint.save(os.path.join(directory, "digits"))
        print(f"epoch {int(epoch):3d}  loss {float(loss.result()):.4f}", flush=True)
        loss.reset_state()
    for batch in test_digits.batch(batch_size):
        test_step(*batch)
    return float(accuracy.result())


def main() -> None:
    """Trains and tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of virtual CPU devices")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="for all replicas together")
    parser.add_argument("--directory", help="where checkpoints are; default a new one")
    flags = parser.parse_args()

    started = time.perf_counter()
    # A launcher: stratagem run, torchrun, mpirun, Slurm, ... Without one, virtual devices for this example.
    launched = sg.distribute.cluster_resolver.resolve_cluster().resolver is not None
    if launched:
        if not flags.directory:
            parser.error("workers save together: give them a --directory that all of them see")
        strategy = sg.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(flags.devices)])
    print(f"{strategy.num_replicas_in_sync} replicas, {strategy}")
    with tempfile.TemporaryDirectory() as temporary:
        accuracy = train(strategy, flags.epochs, flags.batch_size, flags.directory or temporary)
    print(f"test accuracy {accuracy:.1%}")
    print(f"{time.perf_counter() - started:.1f} seconds")
    if not launched:
        print(WHAT_NEXT)


if __name__ == "__main__":
    main()
