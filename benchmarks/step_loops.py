"""Steps in ``for _ in tf.range(n)`` inside a compiled function, per step, for several ``n``.

The step trains a Keras model of two layers with Adam. It is written as a plain function, which the loop
traces, and as a compiled function, which is traced once; and a Python loop calls a compiled function of one
step. Rounds are interleaved, and a ratio is the median of those of each round. The first call, which
compiles, is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import stratagem as tf

LIMIT = 1.1  # of the plain step to the compiled one, for the longest loop


def make_loops(num_devices: int) -> dict[str, Callable[[int], None]]:
    """Returns functions that run a number of steps."""
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    rows = np.random.default_rng(0).normal(size=(256, 16)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat().batch(64)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    with strategy.scope():
        layers = [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.Input((16,)), *layers])
        optimizer = tf.keras.optimizers.Adam(1e-3)
        mean_loss = tf.keras.metrics.Mean()

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum((model(x, training=True) - y) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean_loss.update_state(losses)

    def loop_around(step: Callable[..., None]) -> Callable[[int], None]:
        @tf.function
        def steps(iterator, count):
            for _ in tf.range(count):
                strategy.run(step, args=(next(iterator),))

        return lambda count: steps(iterator, tf.constant(count))

    @tf.function
    def one_step(iterator):
        strategy.run(step, args=(next(iterator),))

    def python_loop(count: int) -> None:
        for _ in range(count):
            one_step(iterator)

    return {
        "compiled step": loop_around(tf.function(step)),
        "plain step": loop_around(step),
        "Python loop": python_loop,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    tf.config.set_num_cpu_devices(max(flags.devices))

    print(f"{'devices':>7} {'steps':>6} {'written as':14} {'a step':>9}  / compiled  limit")
    for num_devices in flags.devices:
        loops = make_loops(num_devices)
        for loop in loops.values():
            loop(3)
        for length in flags.lengths:
            times: dict[str, list[float]] = {name: [] for name in loops}
            for _ in range(flags.rounds):
                for name, loop in loops.items():
                    start = time.perf_counter()
                    loop(length)
                    times[name].append((time.perf_counter() - start) / length)
            for name, measured in times.items():
                pairs = zip(measured, times["compiled step"], strict=True)
                ratio = statistics.median(one / other for one, other in pairs)
                has_limit = name == "plain step" and length == max(flags.lengths)
                print(
                    f"{num_devices:7} {length:6} {name:14} {1e6 * statistics.median(measured):6.0f} us "
                    f"{ratio:11.2f}" + (f"  {LIMIT:5.2f}" if has_limit else ""),
                    flush=True,
                )


if __name__ == "__main__":
    main()
