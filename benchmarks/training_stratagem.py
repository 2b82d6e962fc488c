"""A network of ``training.py`` trained with Stratagem, as a user writes it; started by it.

Prints examples per second as JSON.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import optax
import training_models
from training_rate import examples_per_second

import stratagem as sg


def main() -> None:
    name, num_devices, num_processes, seconds = json.loads(sys.argv[1])
    if num_processes > 1:
        strategy: sg.distribute.Strategy = sg.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    task = training_models.TASKS[name]
    dataset = sg.data.Dataset.from_tensor_slices(training_models.make_data(name))
    dataset = dataset.shuffle(task.examples, seed=2).repeat().batch(task.batch)
    with strategy.scope():
        parameters = [sg.Variable(p) for p in training_models.make_parameters(name)]
        optimizer = sg.train.Optimizer(optax.adam, learning_rate=training_models.LEARNING_RATE)

    def replica_step(inputs, labels):
        def loss():
            each = training_models.losses(name, parameters, inputs, labels)
            return sg.nn.compute_average_loss(each, global_batch_size=task.batch)

        value, gradients = sg.value_and_grad(loss, parameters)()
        optimizer.apply(gradients, parameters)
        return value

    @sg.function
    def train_step(iterator):
        return strategy.reduce("SUM", strategy.run(replica_step, args=next(iterator)), axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    last: list[object] = []

    def step() -> None:
        last[:] = [train_step(iterator)]

    def agreed(steps: int) -> int:
        mine = strategy.experimental_distribute_values_from_function(lambda _: np.float32(steps))
        return int(strategy.reduce("MEAN", mine, axis=None))

    rate = examples_per_second(step, lambda: float(last[0]), task.batch, seconds, agreed)
    print(json.dumps(rate), flush=True)


if __name__ == "__main__":
    main()
