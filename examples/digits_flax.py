"""Trains on handwritten digits with flax and optax: pure functions, and no variables of ours.

Run it with ``python examples/digits_flax.py``. The model's parameters and the optimizer's state are pytrees
that go into ``strategy.run`` and come out of it again; only the gradients are combined.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import optax
from digits_data import load_digits
from flax import nnx

import stratagem as sg


class Network(nnx.Module):
    """Gives each digit a score."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.second = nnx.Linear(128, 64, rngs=rngs)
        self.last = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        """Returns the scores."""
        return self.last(nnx.relu(self.second(nnx.relu(self.first(images)))))


def train(strategy: sg.distribute.Strategy, epochs: int, batch_size: int) -> float:
    """Trains; returns the accuracy on digits that it was not trained with."""
    train_digits, test_digits = load_digits()
    dataset = sg.data.Dataset.from_tensor_slices(train_digits).shuffle(2000, seed=1)
    batches = strategy.experimental_distribute_dataset(
        dataset.batch(batch_size, drop_remainder=True)
    )
    definition, parameters = nnx.split(Network(nnx.Rngs(1)))
    optimizer = optax.adam(2e-3)

    def replica_step(parameters: Any, optimizer_state: Any, images: Any, labels: Any) -> Any:
        def loss_of(parameters: Any) -> Any:
            scores = nnx.merge(definition, parameters)(images)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(parameters)
        replica = sg.distribute.get_replica_context()
        loss, gradients = replica.all_reduce(sg.distribute.ReduceOp.MEAN, (loss, gradients))
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
        return optax.apply_updates(parameters, updates), optimizer_state, loss

    @sg.function
    def train_step(state: Any, batch: Any) -> Any:
        *state, loss = strategy.run(replica_step, args=(*state, *batch))
        return state, loss

    initial = [parameters, optimizer.init(parameters)]
    state = strategy.experimental_distribute_values_from_function(lambda _: initial)
    for epoch in range(1, epochs + 1):
        for batch in batches:
            state, loss = train_step(state, batch)
        [last, *_] = strategy.experimental_local_results(loss)
        print(f"epoch {epoch:3d}  loss of its last batch {float(last):.4f}", flush=True)

    [(trained, _), *_] = strategy.experimental_local_results(state)
    images, labels = test_digits
    return float((nnx.merge(definition, trained)(images).argmax(axis=-1) == labels).mean())


def main() -> None:
    """Trains and tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of virtual CPU devices")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="for all replicas together")
    flags = parser.parse_args()

    started = time.perf_counter()
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(flags.devices)])
    print(f"{strategy.num_replicas_in_sync} replicas, {strategy}")
    print(f"test accuracy {train(strategy, flags.epochs, flags.batch_size):.1%}")
    print(f"{time.perf_counter() - started:.1f} seconds")


if __name__ == "__main__":
    main()
