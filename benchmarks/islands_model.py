"""The data of islands.py, without stratagem, JAX or torch."""

import itertools
import time

import numpy as np

FEATURES, RATE = 64, 0.05


def batches(steps, rows, part, parts=2):
    """Returns the batches of one of two hosts: half of the rows of each step."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, parts, rows, FEATURES)).astype(np.float32)
    y = np.sin(x.sum(axis=-1, keepdims=True) / 4).astype(np.float32)
    return x[:, part], y[:, part]


def first_weights(width):
    """Returns the weights of three layers, two of them hidden."""
    rng = np.random.default_rng(1)
    sizes = [FEATURES, width, width, 1]
    return [
        (rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32)
        for a, b in itertools.pairwise(sizes)
    ]


def held_out():
    """Returns inputs and targets that nobody trains with."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(512, FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(axis=-1, keepdims=True) / 4).astype(np.float32)


def loss_of(weights):
    """Returns the mean squared error on the held-out data."""
    x, y = held_out()
    for weight in weights[:-1]:
        x = np.maximum(x @ weight, 0)
    return float(np.mean((x @ weights[-1] - y) ** 2))


def bytes_sent():
    """Returns how many bytes this host's interface has sent."""
    with open("/proc/self/net/dev") as file:
        counters = next(line for line in file if "eth0:" in line).split(":")[1].split()
    return int(counters[8])


class Measured:
    """Times steps and counts bytes after the first steps, which compile and connect."""

    def __init__(self):
        self.begin()

    def begin(self):
        """Begins to measure."""
        self._started, self._sent = time.perf_counter(), bytes_sent()

    def result(self, steps, weights):
        """Returns what the benchmark prints."""
        return {
            "step_ms": 1e3 * (time.perf_counter() - self._started) / steps,
            "bytes": (bytes_sent() - self._sent) / steps,
            "loss": loss_of(weights),
        }
