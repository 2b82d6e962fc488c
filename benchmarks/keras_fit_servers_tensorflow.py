"""The step of ``keras_fit_servers.py`` with TensorFlow's coordinator; run by that file.

Arguments: the number of workers, of steps in a round, of rounds. Prints the median steps per second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from keras_server_data import NUM_IDS, NUM_ROWS, RATE, WIDTH, make_batches
from parameter_server_tensorflow import free_address, serve


def dataset_fn():
    return tf.data.Dataset.from_tensor_slices(make_batches()).repeat().prefetch(2)


def measure(cluster, num_steps: int, rounds: int) -> float:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.fill((NUM_ROWS, WIDTH), 0.01))
        kernel = tf.Variable(tf.fill((NUM_IDS * WIDTH, 1), 0.01))
        bias = tf.Variable(tf.zeros(1))

    @tf.function
    def step(iterator):
        ids, targets = next(iterator)
        with tf.GradientTape() as tape:
            rows = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, NUM_IDS * WIDTH])
            loss = tf.reduce_mean((rows @ kernel + bias - targets) ** 2)
        rows, of_kernel, of_bias = tape.gradient(loss, [table, kernel, bias])
        table.scatter_sub(tf.IndexedSlices(RATE * rows.values, rows.indices))
        kernel.assign_sub(RATE * of_kernel)
        bias.assign_sub(RATE * of_bias)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    figures = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(num_steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        figures.append(num_steps / (time.perf_counter() - start))
    return statistics.median(figures[1:])


def main() -> None:
    num_workers, num_steps, rounds = map(int, sys.argv[1:])
    processes = multiprocessing.get_context("spawn")
    cluster = {"worker": [free_address() for _ in range(num_workers)], "ps": [free_address()]}
    tasks = [
        processes.Process(target=serve, args=(cluster, job, index), daemon=True)
        for job, addresses in cluster.items()
        for index in range(len(addresses))
    ]
    for task in tasks:
        task.start()
    try:
        figure = measure(cluster, num_steps, rounds)
    finally:
        for task in tasks:
            task.kill()
            task.join()
    print(json.dumps(figure), flush=True)
    os._exit(0)  # the coordinator's threads would wait for the workers


if __name__ == "__main__":
    main()
