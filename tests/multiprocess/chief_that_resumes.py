"""A coordinator that takes over from the one before, if there was one, and says what it finds.

Arguments: the cluster as JSON, and how many seconds each function takes.
"""

import json
import sys
import time

import numpy as np
import optax

import stratagem as sg

STEPS = 8
ROWS = 6


def main():
    cluster, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(sg.train.ClusterSpec(cluster))
    strategy = sg.distribute.ParameterServerStrategy(
        resolver, sg.distribute.partitioners.FixedShardsPartitioner(2), resume=True
    )
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    other = sg.train.Optimizer(optax.adam(0.1))  # the second one is the one with state
    optimizer = sg.train.Optimizer(optax.sgd(1.0, momentum=0.5))
    with strategy.scope():
        unnamed = [sg.Variable(float(10 * i)) for i in range(3)]
        table = sg.Variable(np.zeros((ROWS, 2), np.float32), name="table")
        steps = sg.Variable(0, name="steps")

    def step():
        time.sleep(seconds)
        optimizer.apply_gradients([(-np.ones((ROWS, 2), np.float32), table)])
        for i, variable in enumerate(unnamed):
            variable.assign_add(float(i + 1))
        steps.assign_add(1)

    say(resumed=strategy.resumed, steps=int(steps.numpy()), optimizers=[other.name, optimizer.name])
    for _ in range(int(sys.argv[3])):
        coordinator.schedule(step, worker=0)
        coordinator.join()
        say(steps=int(steps.numpy()))
    if len(sys.argv) > 4:
        coordinator.schedule(lambda: time.sleep(600), worker=1)
        coordinator.schedule(lambda: time.sleep(600), worker=1)
        say(steps="hangs")
        time.sleep(600)
    begun = time.monotonic()
    coordinator.schedule(lambda: None, worker=1)
    coordinator.join()
    say(
        steps=int(steps.numpy()),
        table=table.numpy().tolist(),
        unnamed=[float(v.numpy()) for v in unnamed],
        seconds=time.monotonic() - begun,
    )


def say(**what):
    print(json.dumps(what), flush=True)


main()
