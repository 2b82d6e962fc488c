"""A small training on an island; prints every outer step, and for how long one was waited for in vain.

Arguments: the number of steps, after how many of them islands average, seconds for each step, and
``timeout_seconds``.
"""

import sys
import time

import numpy as np

import stratagem as sg

steps, sync_every = int(sys.argv[1]), int(sys.argv[2])
seconds, timeout = float(sys.argv[3]), float(sys.argv[4])
strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = sg.Variable(np.zeros(4, np.float32), aggregation=sg.VariableAggregation.MEAN)
islands = sg.distribute.experimental.LocalUpdates(
    strategy, [w], sync_every=sync_every, timeout_seconds=timeout
)


@sg.function
def step(amount):
    def replica_step():
        replica = sg.distribute.get_replica_context().replica_id_in_sync_group
        w.assign_add(amount * (1.0 + replica) * np.ones(4, np.float32))

    strategy.run(replica_step)


with islands:
    print(f"joined at step {islands.num_steps}", flush=True)
    while islands.num_steps < steps:
        step(np.float32(1 + islands.island))
        time.sleep(seconds)
        before, started = islands.round, time.monotonic()
        try:
            islands.step()
        except Exception as error:
            waited = time.monotonic() - started
            print(f"gave up after {waited:.1f} s: {error}", flush=True)
            sys.exit(4)
        if islands.round != before:
            number = islands.metrics["islands"]
            print(
                f"round {islands.round} of {number} after {time.monotonic() - started:.1f} s",
                flush=True,
            )
print(f"end {islands.num_steps} w {float(w.value_on_host()[0]):.4f}", flush=True)
