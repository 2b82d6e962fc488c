"""A whole training step of several processes, ours and by hand; run in each of them by multi_worker.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

import stratagem as sg

LEARNING_RATE = 1e-3
NUM_LAYERS = 4
ROWS_PER_REPLICA = 16
WHOLE, ROWS = PartitionSpec(), PartitionSpec("replica")


def loss_of(weights: Any, x: Any) -> Any:
    y = x
    for weight in weights:
        y = jnp.tanh(y @ weight)
    return jnp.mean((y - x) ** 2)


def initial_weights(width: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    scale = np.float32(width**-0.5)
    return [scale * random.standard_normal((width, width), np.float32) for _ in range(NUM_LAYERS)]


def steps(strategy: Any, width: int) -> dict[str, Callable[[], Any]]:
    """Returns a step by hand and one of ours, by name."""
    rows = np.random.default_rng(1).random((ROWS_PER_REPLICA, width), np.float32)
    return {"by hand": by_hand(strategy, width, rows), "stratagem": ours(strategy, width, rows)}


def by_hand(strategy: Any, width: int, rows: np.ndarray) -> Callable[[], Any]:
    """Gradients and loss in one ``pmean``, and parameters given away to the program."""
    group = strategy.replica_group
    place = jax.jit(lambda values: values, out_shardings=NamedSharding(group.mesh, WHOLE))
    weights = place(initial_weights(width))
    x = group.assemble([rows] * len(jax.local_devices()))

    def replica_step(weights: Any, x: Any) -> Any:
        packed, unpack = ravel_pytree(jax.value_and_grad(loss_of)(weights, x))
        value, gradients = unpack(jax.lax.pmean(packed, "replica"))
        return [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)], value

    program = jax.jit(
        jax.shard_map(
            replica_step,
            mesh=group.mesh,
            in_specs=(WHOLE, ROWS),
            out_specs=(WHOLE, WHOLE),
            check_vma=False,
        ),
        donate_argnums=0,
    )

    def step() -> None:
        nonlocal weights
        weights, value = program(weights, x)
        value.block_until_ready()

    return step


def ours(strategy: Any, width: int, rows: np.ndarray) -> Callable[[], Any]:
    """The step as a user writes it."""
    with strategy.scope():
        weights = [sg.Variable(w) for w in initial_weights(width)]
        optimizer = sg.train.Optimizer(optax.sgd, learning_rate=LEARNING_RATE)

    def replica_step(x: Any) -> Any:
        value, gradients = sg.value_and_grad(lambda: loss_of(weights, x), weights)()
        optimizer.apply(gradients, weights)
        return value

    @sg.function
    def train_step(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(x,)), axis=None)

    x = strategy.experimental_distribute_values_from_function(lambda _: rows)
    return lambda: float(train_step(x))
