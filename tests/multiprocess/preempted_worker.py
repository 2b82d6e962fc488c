"""A training program that saves when it is told to end, and goes on when it is started again.

Arguments: the directory, "workers" or "one", how many steps to take, seconds of grace, and seconds by which
steps are held up from step 3 on, until the program is started again. Worker 0 notes the loss of every step,
and all note that they have come to step 3.
"""

import json
import os
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

EXAMPLES = 96
BATCH = 6


def main():
    directory, kind = Path(sys.argv[1]), sys.argv[2]
    steps, grace, pause = int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
    if kind == "workers":
        resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = sg.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        worker = resolver.task_id
    else:
        sg.config.set_num_cpu_devices(2)
        resolver, strategy, worker = None, sg.distribute.MirroredStrategy(), 0
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 3)).astype(np.float32)
    dataset = sg.data.Dataset.from_tensor_slices((np.arange(EXAMPLES), x)).shuffle(EXAMPLES, seed=1)
    with strategy.scope():
        weights = sg.Variable(np.zeros(3, np.float32))
        optimizer = sg.train.Optimizer(optax.adam(0.1))

    @sg.function
    def step(iterator):
        def replica(element):
            numbers, x = element

            def loss():
                return jnp.sum((x @ weights - jnp.sum(x, axis=1)) ** 2) / BATCH

            value, gradient = sg.value_and_grad(loss, weights)()
            optimizer.apply_gradients([(gradient, weights)])
            return value, numbers

        value, numbers = strategy.run(replica, args=(next(iterator),))
        return strategy.reduce("SUM", value, axis=None), strategy.gather(numbers, axis=0)

    checkpoint = sg.train.Checkpoint(weights=weights, optimizer=optimizer)
    handler = sg.distribute.experimental.PreemptionCheckpointHandler(
        resolver,
        checkpoint,
        str(directory / "checkpoints"),
        sg.distribute.experimental.TerminationConfig(grace_period=grace),
    )
    dataset = dataset.repeat().batch(BATCH).skip(handler.total_run_calls)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    first = handler.total_run_calls == 0
    while handler.total_run_calls < steps:
        number = handler.total_run_calls
        loss, examples = handler.run(step, iterator)
        if worker == 0:
            line = {"step": number, "loss": float(loss), "examples": np.asarray(examples).tolist()}
            with (directory / "steps").open("a") as file:
                file.write(json.dumps(line) + "\n")
        if first and number == 3:
            (directory / f"ready-{worker}").write_text(str(os.getpid()))
        if first and number >= 3:
            time.sleep(pause * (1 + worker))  # workers that are not at the same place all the time


main()
