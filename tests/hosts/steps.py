"""Workers that add up their numbers, step by step, and say how that went.

Arguments: how many steps, for how many seconds each pauses, and ``timeout_seconds``. Each step prints
``step N sum S``. A step that fails prints ``lost after S s: ERROR``, S since the step before ended.
"""

import sys
import time

import numpy as np

import stratagem as sg

num_steps, pause = int(sys.argv[1]), float(sys.argv[2])
timeout = float(sys.argv[3]) if len(sys.argv) > 3 else 300.0
begun = time.monotonic()
try:
    strategy = sg.distribute.MultiWorkerMirroredStrategy(
        communication_options=sg.distribute.experimental.CommunicationOptions(
            timeout_seconds=timeout
        )
    )
except sg.errors.UnavailableError as error:
    print(f"not started after {time.monotonic() - begun:.1f} s: {error}", flush=True)
    sys.exit(3)


@sg.function
def total(x):
    return strategy.run(
        lambda x: sg.distribute.get_replica_context().all_reduce("SUM", x), args=(x,)
    )


rank = strategy.cluster_resolver.process_id
numbers = strategy.experimental_distribute_values_from_function(
    lambda _: np.full(1000, rank + 1, np.float32)
)
for step in range(num_steps):
    begun = time.monotonic()
    try:
        result = strategy.experimental_local_results(total(numbers))[0]
    except sg.errors.UnavailableError as error:
        print(f"lost after {time.monotonic() - begun:.1f} s: {error}", flush=True)
        sys.exit(4)
    print(f"step {step} sum {float(result[0])}", flush=True)
    time.sleep(pause)
print("done", flush=True)
