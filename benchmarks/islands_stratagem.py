"""One of two hosts of islands.py with stratagem; prints milliseconds and bytes a step as JSON.

Arguments: the width of the hidden layers, the rows of a batch, the number of steps, after how many of them
islands average (0 trains in sync), and how many steps an outer step overlaps with.
"""

import json
import sys

import jax.numpy as jnp
import numpy as np
import optax
from islands_model import RATE, Measured, batches, first_weights

import stratagem as sg

width, rows, steps, sync_every, overlap = map(int, sys.argv[1:6])
strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = [sg.Variable(value) for value in first_weights(width)]
optimizer = sg.train.Optimizer(optax.sgd(RATE))


@sg.function
def step(x, y):
    def replica_step(x, y):
        def loss():
            hidden = x
            for weight in weights[:-1]:
                hidden = jnp.maximum(hidden @ weight.value(), 0)
            squares = jnp.square(hidden @ weights[-1].value() - y).sum(axis=1)
            whole = rows * strategy.num_replicas_in_sync
            return sg.nn.compute_average_loss(squares, global_batch_size=whole)

        _, gradients = sg.value_and_grad(loss, weights)()
        optimizer.apply(gradients, weights)

    strategy.run(replica_step, args=(x, y))


def train(part, after_step, settle, before):
    """Trains; what is before the measured steps is a whole interval between outer steps."""
    inputs, targets = batches(before + steps, rows, part)
    for number, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        if number == before:
            settle()
            measured.begin()
        step(x, y)
        after_step()
    settle()
    values = [np.asarray(weight.value_on_host()) for weight in weights]
    print(json.dumps(measured.result(steps, values)), flush=True)


measured = Measured()
if sync_every:
    islands = sg.distribute.experimental.LocalUpdates(
        strategy, weights, sync_every=sync_every, overlap_steps=overlap
    )
    with islands:
        train(islands.island, islands.step, islands.synchronize, sync_every)
else:
    train(
        strategy.cluster_resolver.task_id,
        lambda: None,
        lambda: weights[-1].value_on_host(),
        2,
    )
