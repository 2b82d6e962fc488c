"""What ``parameter_server.py`` measures, with TensorFlow; started by it, in its own interpreter."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf


def serve(cluster, job_name, task_index) -> None:
    spec = tf.train.ClusterSpec(cluster)
    tf.distribute.Server(spec, job_name=job_name, task_index=task_index, protocol="grpc").join()


def free_address() -> str:
    with socket.create_server(("localhost", 0)) as listening:
        return f"localhost:{listening.getsockname()[1]}"


def median_of(rounds, measure) -> float:
    measure()
    return statistics.median(measure() for _ in range(rounds))


def milliseconds(call, count) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e3


def closures_per_second(coordinator, fn, count) -> float:
    start = time.perf_counter()
    for _ in range(count):
        coordinator.schedule(fn)
    coordinator.join()
    return count / (time.perf_counter() - start)


def milliseconds_to_push(variable, array, count) -> float:
    # New tensors every time: what was sent once is remembered there. Reading an element waits for it.
    tensors = [tf.constant(array + 1 + index) for index in range(count)]
    start = time.perf_counter()
    for tensor in tensors:
        variable.assign(tensor)
        first = variable.sparse_read([0]).numpy()[0]
    taken = (time.perf_counter() - start) / count * 1e3
    assert first == array[0] + count
    return taken


def measure(cluster, request) -> dict[str, float]:
    rounds = request["rounds"]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    array = np.arange(request["num_floats"], dtype=np.float32)
    with strategy.scope():
        counter, variable = tf.Variable(0), tf.Variable(array)

    @tf.function
    def empty():
        return 0

    @tf.function
    def increment():
        counter.assign_add(1)

    return {
        "empty closures/s": median_of(
            rounds, lambda: closures_per_second(coordinator, empty, 1000)
        ),
        "increments/s": median_of(
            rounds, lambda: closures_per_second(coordinator, increment, 1000)
        ),
        "round trip, ms": median_of(
            rounds, lambda: milliseconds(lambda: coordinator.schedule(empty).fetch(), 100)
        ),
        "pull 25 MB, ms": median_of(rounds, lambda: milliseconds(variable.numpy, 5)),
        "push 25 MB, ms": median_of(rounds, lambda: milliseconds_to_push(variable, array, 5)),
    }


def main() -> None:
    request = json.load(sys.stdin)
    processes = multiprocessing.get_context("spawn")
    cluster = {"worker": [free_address(), free_address()], "ps": [free_address()]}
    tasks = [
        processes.Process(target=serve, args=(cluster, job, index), daemon=True)
        for job, addresses in cluster.items()
        for index in range(len(addresses))
    ]
    for task in tasks:
        task.start()
    try:
        figures = measure(cluster, request)
    finally:
        for task in tasks:
            task.kill()
            task.join()
    print(json.dumps(figures), flush=True)
    os._exit(0)  # the coordinator's threads would wait for the workers


if __name__ == "__main__":
    main()
