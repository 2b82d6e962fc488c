"""Trains a small network on handwritten digits, on several virtual CPU devices.

Run it with ``python examples/digits.py --devices 2``. Each device is a replica with its share of
every batch; the gradients are averaged over the replicas.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import stratagem as sg

LAYERS = (64, 128, 64, 10)
NUM_TRAIN, NUM_TEST = 1437, 360


def load_digits(path: Path) -> tuple[np.ndarray, ...]:
    """Returns images and labels to train with, then images and labels to test with."""
    with np.load(path) as data:
        images = data["images"].reshape(-1, 64).astype(np.float32) / 16
        labels = data["labels"].astype(np.int32)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    return images[NUM_TEST:], labels[NUM_TEST:], images[:NUM_TEST], labels[:NUM_TEST]


def initial_parameters(rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Returns weights and biases of each layer."""
    return [
        {
            "w": rng.normal(0, np.sqrt(2 / num_in), (num_in, num_out)).astype(np.float32),
            "b": np.zeros(num_out, np.float32),
        }
        for num_in, num_out in itertools.pairwise(LAYERS)
    ]


def create_variables(tree: Any) -> Any:
    """Returns a variable for each array.

    Every replica computes the same update from the averaged gradients, so the first one's will do.
    """
    first = sg.VariableAggregation.ONLY_FIRST_REPLICA
    return jax.tree.map(lambda array: sg.Variable(array, aggregation=first), tree)


def read(variables: Any) -> Any:
    """Returns the variables' values, in the same structure."""
    return jax.tree.map(jnp.asarray, variables)


def assign(variables: Any, values: Any) -> None:
    """Gives each variable its new value."""
    targets = jax.tree.leaves(variables, is_leaf=lambda leaf: isinstance(leaf, sg.Variable))
    for variable, value in zip(targets, jax.tree.leaves(values), strict=True):
        variable.assign(value)


def logits_of(parameters: Any, images: Any) -> Any:
    """Returns a score for each digit."""
    hidden = images
    for layer in parameters[:-1]:
        hidden = jax.nn.relu(hidden @ layer["w"] + layer["b"])
    return hidden @ parameters[-1]["w"] + parameters[-1]["b"]


def distribute(strategy: sg.distribute.Strategy, *arrays: np.ndarray) -> Any:
    """Returns each array as a per-replica value: every replica gets its slice."""

    def share(context: sg.distribute.experimental.ValueContext) -> Any:
        return tuple(
            np.array_split(array, context.num_replicas_in_sync)[context.replica_id_in_sync_group]
            for array in arrays
        )

    return strategy.experimental_distribute_values_from_function(share)


def batches(rng: np.random.Generator, size: int, *arrays: np.ndarray) -> Iterator[Any]:
    """Yields full batches in random order; what is left over has its turn in another epoch."""
    order = rng.permutation(len(arrays[0]))
    for start in range(0, len(order) - size + 1, size):
        yield tuple(array[order[start : start + size]] for array in arrays)


def main() -> None:
    """Trains and tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of virtual CPU devices")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="for all replicas together")
    flags = parser.parse_args()
    if flags.batch_size % flags.devices:
        parser.error("--batch-size must be divisible by --devices")

    if flags.batch_size > NUM_TRAIN:
        parser.error(f"--batch-size must be at most {NUM_TRAIN}, the number of training images")

    started = time.perf_counter()
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(flags.devices)])
    train_images, train_labels, test_images, test_labels = load_digits(
        Path(__file__).parent / "data" / "digits.npz"
    )
    rng = np.random.default_rng(1)
    optimizer = optax.adam(2e-3)
    with strategy.scope():
        parameters = create_variables(initial_parameters(rng))
        optimizer_state = create_variables(optimizer.init(read(parameters)))

    def loss_fn(images: Any, labels: Any) -> Any:
        logits = logits_of(parameters, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def replica_step(images: Any, labels: Any) -> Any:
        loss, gradients = sg.value_and_grad(loss_fn, parameters)(images, labels)
        replica = sg.distribute.get_replica_context()
        gradients = replica.all_reduce(sg.distribute.ReduceOp.MEAN, gradients)
        values = read(parameters)
        updates, new_state = optimizer.update(gradients, read(optimizer_state), values)
        assign(parameters, optax.apply_updates(values, updates))
        assign(optimizer_state, new_state)
        return loss

    @sg.function
    def train_step(images: Any, labels: Any) -> Any:
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce(sg.distribute.ReduceOp.MEAN, losses, axis=None)

    @sg.function
    def accuracy_of(images: Any, labels: Any) -> Any:
        def correct(images: Any, labels: Any) -> Any:
            return logits_of(parameters, images).argmax(axis=-1) == labels

        hits = strategy.run(correct, args=(images, labels))
        return strategy.reduce(sg.distribute.ReduceOp.MEAN, hits, axis=0)

    steps = len(train_images) // flags.batch_size
    print(f"{strategy.num_replicas_in_sync} replicas, {strategy}")
    with tqdm(total=flags.epochs * steps, unit="step") as progress:
        for epoch in range(1, flags.epochs + 1):
            losses = []
            for batch in batches(rng, flags.batch_size, train_images, train_labels):
                losses.append(train_step(*distribute(strategy, *batch)))
                progress.update()
            progress.write(f"epoch {epoch:3d}  loss {np.mean(losses):.4f}")

    accuracy = accuracy_of(*distribute(strategy, test_images, test_labels))
    print(f"test accuracy {float(accuracy):.1%} of {len(test_images)} digits")
    print(f"{time.perf_counter() - started:.1f} seconds")


if __name__ == "__main__":
    main()
