"""The steps of ``step.py`` under TensorFlow's MirroredStrategy; started by it, in its own interpreter."""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import tensorflow as tf


def time_case(shapes, request) -> float:
    num_devices = request["num_devices"]
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_devices)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    random = np.random.default_rng(0)
    with strategy.scope():
        variables = [
            tf.Variable((random.normal(size=s) / np.sqrt(s[0])).astype(np.float32)) for s in shapes
        ]
    data = np.random.default_rng(1).normal(size=(request["rows"] * num_devices, shapes[0][0]))
    x = np.split(data.astype(np.float32), num_devices)

    def distribute(arrays):
        return strategy.experimental_distribute_values_from_function(
            lambda ctx: tf.constant(arrays[ctx.replica_id_in_sync_group])
        )

    def apply(strategy, gradients):
        pairs = list(zip(gradients, variables, strict=True))
        reduced = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs)
        for gradient, variable in zip(reduced, variables, strict=True):
            strategy.extended.update(
                variable, lambda v, g: v.assign_sub(request["learning_rate"] * g), args=(gradient,)
            )

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            prediction = x
            for variable in variables:
                if len(variable.shape) == 2:
                    prediction = tf.tanh(prediction @ variable)
                else:
                    prediction = prediction + variable
            loss = tf.reduce_mean((prediction - y) ** 2)
        gradients = tape.gradient(loss, variables)
        tf.distribute.get_replica_context().merge_call(apply, args=(gradients,))
        return loss

    @tf.function
    def step(x, y):
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(x, y)), axis=None)

    inputs = distribute(x), distribute([np.roll(part, 1, axis=1) for part in x])
    for _ in range(request["steps"]):
        result = step(*inputs)
    times = []
    for _ in range(request["rounds"]):
        start = time.perf_counter()
        for _ in range(request["steps"]):
            result = step(*inputs)
        result.numpy()
        times.append((time.perf_counter() - start) / request["steps"] * 1e6)
    return statistics.median(times)


def main() -> None:
    request = json.load(sys.stdin)
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        device, [tf.config.LogicalDeviceConfiguration()] * request["num_devices"]
    )
    print(json.dumps({name: time_case(shapes, request) for name, shapes in request["cases"]}))


if __name__ == "__main__":
    main()
