"""Steps over 2 MiB of parameters on islands, or in sync if there are none; prints how long they take.

Arguments: the number of steps, and after how many of them islands average.
"""

import os
import sys
import time

import numpy as np
import optax

import stratagem as sg

steps, sync_every = int(sys.argv[1]), int(sys.argv[2])
strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = sg.Variable(np.zeros(1 << 19, np.float32))
optimizer = sg.train.Optimizer(optax.sgd(0.1))
on_islands = "STRATAGEM_ISLAND" in os.environ
target = np.float32(
    1 + int(os.environ.get("STRATAGEM_ISLAND", strategy.cluster_resolver.task_id or 0))
)


@sg.function
def step(target):
    def replica_step(target):
        def loss():
            return ((w.value() - target) ** 2).sum() / strategy.num_replicas_in_sync

        _, gradients = sg.value_and_grad(loss, [w])()
        optimizer.apply(gradients, [w])

    strategy.run(replica_step, args=(target,))


def train(after_step):
    step(target)
    after_step()
    started = time.perf_counter()
    for _ in range(steps - 1):
        step(target)
        after_step()
        value = float(w.value_on_host()[0])
    print(f"step_ms {1e3 * (time.perf_counter() - started) / (steps - 1):.1f}", flush=True)
    print(f"value {value:.6f}", flush=True)


if on_islands:
    islands = sg.distribute.experimental.LocalUpdates(strategy, [w], sync_every=sync_every)
    with islands:
        train(islands.step)
    print(f"islands {islands.metrics['islands']} rounds {islands.round}", flush=True)
else:
    train(lambda: None)
