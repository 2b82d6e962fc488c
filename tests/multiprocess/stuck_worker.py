"""A worker that is interrupted in a step for which the other does not come, and then ends somehow.

Arguments: how it ends, and a file. Worker 1 is the other.
"""

import atexit
import json
import os
import signal
import sys
import threading
from pathlib import Path

atexit.register(lambda: print("registered before the library", flush=False))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import stratagem as sg  # noqa: E402
from stratagem._src.control_plane.join import joined_cluster  # noqa: E402


def get_stuck():
    """Returns when this worker has given up a step that XLA has not."""
    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        variable = sg.Variable(np.zeros(3, np.float32), aggregation=sg.VariableAggregation.SUM)

    @sg.function
    def step(x):
        return strategy.run(lambda x: variable.assign_add(x), args=(x,))

    x = strategy.experimental_distribute_values_from_function(lambda _: jnp.ones(3))
    step(x)
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        while True:
            signal.pause()
    threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
    try:
        step(x)
    except KeyboardInterrupt:
        assert joined_cluster().watch.is_stuck()
    else:
        raise AssertionError("the other worker came")


def end(how):
    """Ends the program."""
    atexit.register(lambda: print("registered after the library"))
    print("written and not flushed")
    log = Path(sys.argv[2]).open("w")  # noqa: SIM115
    log.write("logged")
    globals()["log"] = log  # never closed
    if how == "exit":
        sys.exit(3)
    if how == "text":
        raise SystemExit("a last word")
    if how == "raise":
        raise KeyError("mine")
    if how == "interrupt":
        signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    get_stuck()
    end(sys.argv[1])
