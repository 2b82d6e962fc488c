"""All-reduce with TensorFlow in one of several processes; prints milliseconds by size as JSON.

Started by multi_worker.py and between_hosts.py with another interpreter: it must not import stratagem.
"""

import json
import statistics
import sys
import time

import tensorflow as tf
from network_phases import phases

sizes, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def step(x):
    def replica_fn(x):
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(x)])[0]

    return strategy.run(replica_fn, args=(x,))


for _ in phases():
    results = {}
    for size, count in sizes.items():
        value = tf.random.uniform([count])
        repeats = 20 if count <= 2**18 else 1
        times = []
        for round_number in range(rounds + 2):
            start = time.perf_counter()
            for _ in range(repeats):
                float(step(value)[0])
            if round_number >= 2:
                times.append((time.perf_counter() - start) / repeats * 1e3)
        results[size] = statistics.median(times)
    print(json.dumps(results), flush=True)
