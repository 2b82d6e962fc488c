"""Trains a recommender asynchronously: embedding tables on parameter servers, steps on workers.

Run it with ``stratagem run --workers 2 --ps 2 --chief examples/recommender.py``. The chief schedules
steps, the workers run them, each at its own pace, and the servers hold the tables, half of each on
either, and apply the gradients. A step moves only the rows of its batch. Every worker prints the id of
its process: end one with ``kill -9`` and watch the bar go on; the launcher starts it again.

The clicks are made by a rule: user u and item i have hidden directions a and b, made from a seed, and
the user clicks with the probability sigmoid(4 a·b). The program sees only clicks. How well it learned is
the area under the ROC curve on pairs that it was not trained on: the chance that a clicked pair gets a
higher score than one that was not clicked. The rule itself reaches about 0.87, guessing 0.5.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import optax
from tqdm import tqdm

import stratagem as sg

NUM_USERS, NUM_ITEMS = 4000, 1000
HIDDEN_DIMS, EMBEDDING_DIMS = 4, 8
SHARPNESS = 4.0


class Clicks(NamedTuple):
    """Pairs of a user and an item, and whether the user clicked."""

    users: np.ndarray
    items: np.ndarray
    clicked: np.ndarray


def hidden_directions() -> tuple[np.ndarray, np.ndarray]:
    """Returns the directions of users and of items, of length one."""
    rng = np.random.default_rng(0)
    users, items = (rng.normal(size=(number, HIDDEN_DIMS)) for number in (NUM_USERS, NUM_ITEMS))
    return tuple(v / np.linalg.norm(v, axis=1, keepdims=True) for v in (users, items))


def probabilities(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Returns how likely each user clicks on each item, by the rule."""
    user_directions, item_directions = hidden_directions()
    agreement = (user_directions[users] * item_directions[items]).sum(axis=1)
    return 1 / (1 + np.exp(-SHARPNESS * agreement))


def draw_clicks(rng: np.random.Generator, number: int) -> Clicks:
    """Returns random pairs, clicked or not by the rule."""
    users = rng.integers(0, NUM_USERS, number)
    items = rng.integers(0, NUM_ITEMS, number)
    clicked = rng.random(number) < probabilities(users, items)
    return Clicks(users, items, clicked.astype(np.float32))


def area_under_curve(scores: np.ndarray, clicked: np.ndarray) -> float:
    """Returns the chance that a clicked pair has a higher score than another."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    num_clicked = clicked.sum()
    below = ranks[clicked == 1].sum() - num_clicked * (num_clicked + 1) / 2
    return float(below / (num_clicked * (len(scores) - num_clicked)))


class Recommender:
    """Scores a pair by the product of the user's and the item's embedding."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.users, self.items = (
            sg.Variable(rng.normal(0, 0.3, (number, EMBEDDING_DIMS)).astype(np.float32))
            for number in (NUM_USERS, NUM_ITEMS)
        )

    def scores(self, users: Any, items: Any) -> Any:
        """Returns a score for each pair; only the rows that it needs are fetched."""
        return (self.users.sparse_read(users) * self.items.sparse_read(items)).sum(axis=-1)

    def area_under_curve(self, clicks: Clicks) -> float:
        """Returns how well it tells clicked pairs from others."""
        return area_under_curve(np.asarray(self.scores(clicks.users, clicks.items)), clicks.clicked)


def make_train_step(
    strategy: sg.distribute.Strategy, recommender: Recommender
) -> Callable[[Any], Any]:
    """Returns a function that takes a step with the next batch of an iterator."""
    optimizer = sg.train.Optimizer(optax.adam(0.02))
    tables = [recommender.users, recommender.items]

    def replica_step(users: Any, items: Any, clicked: Any) -> Any:
        def loss_fn() -> Any:
            scores = recommender.scores(users, items)
            return optax.sigmoid_binary_cross_entropy(scores, clicked).mean()

        loss, gradients = sg.value_and_grad(loss_fn, tables)()
        optimizer.apply_gradients(zip(gradients, tables, strict=True))
        return loss

    @sg.function
    def train_step(iterator: Any) -> Any:
        return strategy.run(replica_step, args=next(iterator))

    return train_step


def train(strategy: sg.distribute.Strategy, num_steps: int, batch_size: int) -> None:
    """Directs the workers, and reports what was learned."""
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        recommender = Recommender()
    train_step = make_train_step(strategy, recommender)

    def make_dataset() -> sg.data.Dataset:
        def batches() -> Iterator[Clicks]:
            rng = np.random.default_rng()
            while True:
                yield tuple(draw_clicks(rng, batch_size))

        specs = (
            sg.data.TensorSpec([batch_size], np.int64),
            sg.data.TensorSpec([batch_size], np.int64),
            sg.data.TensorSpec([batch_size], np.float32),
        )
        return sg.data.Dataset.from_generator(batches, output_signature=specs)

    iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
    test = draw_clicks(np.random.default_rng(2), 20_000)
    print(f"before: area under the curve {recommender.area_under_curve(test):.3f}", flush=True)

    started = time.perf_counter()
    running: deque[Any] = deque()
    losses: deque[float] = deque(maxlen=100)
    with tqdm(total=num_steps, unit="step", mininterval=0.5) as progress:
        for _ in range(num_steps):
            running.append(coordinator.schedule(train_step, args=(iterator,)))
            if len(running) > 100:
                losses.append(float(running.popleft().fetch()))
                progress.update()
        while running:
            losses.append(float(running.popleft().fetch()))
            progress.update()
    coordinator.join()

    rule = area_under_curve(probabilities(test.users, test.items), test.clicked)
    print(f"loss of the last steps {np.mean(losses):.3f}")
    print(
        f"after: area under the curve {recommender.area_under_curve(test):.3f}, "
        f"the rule itself {rule:.3f}"
    )
    print(f"{num_steps} steps in {time.perf_counter() - started:.1f} seconds", flush=True)


def main() -> None:
    """Serves, or directs, as the task of this process says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=1024)
    flags = parser.parse_args()

    resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type is None:
        parser.error("start it with: stratagem run --workers 2 --ps 2 --chief " + __file__)
    if resolver.task_type in ("worker", "ps"):
        print(f"process {os.getpid()}", flush=True)
        server = sg.distribute.Server(
            resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
        )
        server.join()
        return
    num_servers = resolver.cluster_spec().num_tasks("ps")
    partitioner = sg.distribute.partitioners.FixedShardsPartitioner(num_servers)
    train(
        sg.distribute.ParameterServerStrategy(resolver, partitioner), flags.steps, flags.batch_size
    )


if __name__ == "__main__":
    main()
