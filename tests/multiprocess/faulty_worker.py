"""A worker that trains until something goes wrong; prints what it was told, as JSON.

Arguments: the fault, the worker that has it, seconds until it happens, the deadline of collectives.
"""

import json
import os
import signal
import sys
import threading
import time

import jax.numpy as jnp
import numpy as np

import stratagem as sg

fault, victim, delay, deadline = (
    sys.argv[1],
    int(sys.argv[2]),
    float(sys.argv[3]),
    float(sys.argv[4]),
)
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
}


def train():
    global variable
    options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=deadline)
    strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        variable = sg.Variable(np.zeros(3, np.float32), aggregation=sg.VariableAggregation.SUM)

    @sg.function
    def step(x):
        def replica_step(x):
            variable.assign_add(x)
            return jnp.sum(variable)

        return strategy.run(replica_step, args=(x,))

    x = strategy.experimental_distribute_values_from_function(lambda _: jnp.ones(3))
    whole_numbers = strategy.run(lambda x: x.astype(jnp.int32), args=(x,))
    step(x)
    print("started", flush=True)
    if me == victim and fault in SIGNALS:
        threading.Timer(delay, lambda: os.kill(os.getpid(), SIGNALS[fault])).start()
    begun = time.monotonic()
    while True:
        if me == victim and time.monotonic() - begun > delay:
            if fault == "stuck":
                time.sleep(2 * deadline)
            if fault == "leave":
                return
            if fault == "raise":
                raise KeyError("my own fault")
            if fault == "shape":
                step(whole_numbers)
            if fault == "order":
                strategy.reduce("SUM", x, axis=None)
        step(x)


variable = None
begun = time.monotonic()
if fault == "absent" and me == victim:
    sys.exit()
try:
    train()
    outcome = {"error": None}
except (Exception, KeyboardInterrupt) as error:
    outcome = {"error": type(error).__name__, "text": str(error)}
    if variable is not None:
        outcome["variable"] = np.asarray(variable).tolist()
outcome["seconds"] = time.monotonic() - begun
print(json.dumps(outcome), flush=True)
