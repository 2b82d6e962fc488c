"""A worker that trains until something goes wrong; prints what it was told, as JSON.

Arguments: the fault, the worker that has it, seconds until it happens, the deadline of collectives. A
fault that is a moment of the start means that the worker is killed so many seconds after it. A fifth
argument is the platform as on which to wait for the others.
"""

import json
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

import stratagem as sg
from stratagem._src.control_plane import join, watchdog
from stratagem._src.control_plane.failure_detector import FailureDetector
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.jax_compat import distributed_runtime as jax_runtime

fault, victim, delay, deadline = (
    sys.argv[1],
    int(sys.argv[2]),
    float(sys.argv[3]),
    float(sys.argv[4]),
)
platform = sys.argv[5] if len(sys.argv) > 5 else None
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
}
# What a worker calls next.
MOMENTS = {
    "hosting": (join, "MembershipServerProcess"),
    "roll call": (join, "_wait_for_all"),
    "clients": (jax_runtime, "_join_processes"),
    "devices": (jax, "devices"),
    "first program": (FailureDetector, "run"),
}


def be_killed_at(owner, name):
    """Has this process killed ``delay`` seconds after it calls a function."""
    function = getattr(owner, name)

    def call_and_die(*args, **kwargs):
        if delay == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        return function(*args, **kwargs)

    setattr(owner, name, call_and_die)


def train():
    global variable
    if platform is not None:
        watchdog.GRACE_SECONDS = 2.0
        resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
        join.join_cluster(resolver, deadline, platform=platform)
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
    jax.monitoring.register_event_duration_secs_listener(note_compilation)
    if me == victim and fault in SIGNALS:
        threading.Timer(delay, lambda: os.kill(os.getpid(), SIGNALS[fault])).start()
    begun = time.monotonic()
    if fault == "create":
        if me == victim:
            with strategy.scope():
                sg.Variable(1.0, name="extra")
        step(whole_numbers)
    if fault == "draw":
        dataset = sg.data.Dataset.range(8).batch(4)
        first, second = (iter(strategy.experimental_distribute_dataset(dataset)) for _ in range(2))
        next(second if me == victim else first)
    while True:
        if me == victim and time.monotonic() - begun > delay:
            if fault == "stuck":
                time.sleep(2 * deadline)
            if fault == "meet a dead worker":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "leave":
                return
            if fault == "raise":
                raise KeyError("my own fault")
            if fault == "shape":
                step(whole_numbers)
            if fault == "order":
                strategy.reduce("SUM", x, axis=None)
        if fault == "meet a dead worker":
            # In its own code, and not in the driver, until the other is gone.
            while not joined_cluster().watch._client.views()[victim].gone:
                time.sleep(0.01)
        step(x)


def note_compilation(event, seconds, **about):
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(about.get("fun_name"))


compiled = []
variable = None
begun = time.monotonic()
if fault == "absent" and me == victim:
    sys.exit()
if fault in MOMENTS and me == victim:
    be_killed_at(*MOMENTS[fault])
try:
    train()
    outcome = {"error": None}
except (Exception, KeyboardInterrupt) as error:
    outcome = {"error": type(error).__name__, "text": str(error)}
    if variable is not None:
        outcome["variable"] = np.asarray(variable).tolist()
outcome["compiled"] = compiled
outcome["seconds"] = time.monotonic() - begun
print(json.dumps(outcome), flush=True)
