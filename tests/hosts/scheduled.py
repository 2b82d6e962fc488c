"""A chief that schedules functions on a worker, with a variable on a parameter server, and times them.

Arguments: how many functions, and ``worker_timeout``. Each prints ``count N``. When a server is lost it
prints ``lost after S s: ERROR``, S since the function was scheduled.
"""

import sys
import time

import numpy as np

import stratagem as sg

resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    sg.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
strategy = sg.distribute.ParameterServerStrategy(resolver)
coordinator = sg.distribute.coordinator.ClusterCoordinator(
    strategy, worker_timeout=float(sys.argv[2])
)
with strategy.scope():
    count = sg.Variable(np.float32(0.0))


@sg.function
def add():
    count.assign_add(1.0)
    return count.read_value()


for _ in range(int(sys.argv[1])):
    begun = time.monotonic()
    try:
        print(f"count {coordinator.schedule(add).fetch():.0f}", flush=True)
    except (sg.errors.PSUnavailableError, sg.errors.CancelledError) as error:
        print(f"lost after {time.monotonic() - begun:.1f} s: {error}", flush=True)
        sys.exit(4)
    time.sleep(0.1)
print("done", flush=True)
