"""Training steps of several processes on this machine, for scaling.py to fit a model to."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from scaling_model import Point

from stratagem.testing import run_cluster

WIDTHS = (64, 128, 256, 512, 1024)
NUM_LAYERS = 4
BATCH = 64
WARM_UP_STEPS = 5
HELD_BACK_PROCESSES = 3
HELD_BACK_WIDTH = 256


class Measured(NamedTuple):
    """Steps of one network.

    Attributes:
        seconds: The median of a step.
        cores: How many cores this process took.
        spread: By what part of the median steps differ from it, as of a standard deviation.
    """

    seconds: float
    cores: float
    spread: float


def measure(seconds: float) -> list[Measured]:
    """Returns what steps of each width take, in a worker."""
    import jax
    import numpy as np
    import optax

    import stratagem as sg

    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    random = np.random.default_rng(0)
    found = []
    for width in WIDTHS:
        with strategy.scope():
            start = [random.normal(0, width**-0.5, (width, width)) for _ in range(NUM_LAYERS)]
            weights = [sg.Variable(w.astype(np.float32)) for w in start]
            optimizer = sg.train.Optimizer(optax.sgd, learning_rate=1e-3)

        def replica_step(x, weights=weights, optimizer=optimizer):
            def loss():
                y = x
                for weight in weights:
                    y = jax.nn.relu(y @ weight)
                return (y**2).mean()

            value, gradients = sg.value_and_grad(loss, weights)()
            optimizer.apply(gradients, weights)
            return value

        @sg.function
        def step(x, replica_step=replica_step):
            return strategy.reduce("MEAN", strategy.run(replica_step, args=(x,)), axis=None)

        batch = random.random((BATCH, width), np.float32)
        value = strategy.experimental_distribute_values_from_function(lambda _, b=batch: b)
        step_of_all = functools.partial(step, value)
        for _ in range(WARM_UP_STEPS):
            float(step_of_all())
        num_steps = _agreed_steps(strategy, step_of_all, seconds)
        times, computed = [], time.process_time()
        begun = time.perf_counter()
        for _ in range(num_steps):
            start_of_step = time.perf_counter()
            float(step_of_all())
            times.append(time.perf_counter() - start_of_step)
        cores = (time.process_time() - computed) / (time.perf_counter() - begun)
        median = statistics.median(times)
        spread = 1.4826 * statistics.median(abs(t - median) for t in times) / median
        found.append(Measured(median, cores, spread))
    return found


def _agreed_steps(strategy: Any, step: Callable[[], Any], seconds: float) -> int:
    """Returns how many steps all workers take in so many seconds, about."""
    import numpy as np

    begun = time.perf_counter()
    float(step())
    mine = np.float32(seconds / (time.perf_counter() - begun))
    of_all = strategy.experimental_distribute_values_from_function(lambda _: mine)
    return int(min(300, max(10, float(strategy.reduce("MEAN", of_all, axis=None)))))


def measured_steps(most_processes: int, seconds: float) -> tuple[list[Point], list[Point], float]:
    """Returns points to fit a model to, points that are held back, and the spread of steps alone."""
    alone, *several = (
        run_cluster(measure, workers=count, args=(seconds,), timeout=300)[0]
        for count in range(1, most_processes + 1)
    )
    fitted, held_back = [], []
    for num_processes, steps in enumerate([alone, *several], start=1):
        for width, single, found in zip(WIDTHS, alone, steps, strict=True):
            num_bytes = 4 * NUM_LAYERS * width**2
            cores = min(single.cores, os.cpu_count() or 1)
            point = Point(num_processes, num_bytes, single.seconds, cores, found.seconds)
            is_held_back = num_processes == HELD_BACK_PROCESSES or width == HELD_BACK_WIDTH
            if num_processes > 1:
                (held_back if is_held_back else fitted).append(point)
    return fitted, held_back, statistics.median(found.spread for found in alone)
