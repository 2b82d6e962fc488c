"""Keras' ``fit`` under ``MirroredStrategy`` against one device and ``keras.distribution.DataParallel``.

All sides train the same model on the same arrays with the same batches, input and callbacks included.
Rounds of the sides are interleaved; a figure is the median time of a step. With ``--tensorflow-python``
naming an interpreter that has TensorFlow, its Keras runs under its MirroredStrategy too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras_models import STEPS, fit, make_data, make_model

import stratagem as sg


class Case(NamedTuple):
    """A model, and how slow its step may be in comparison with ``DataParallel``."""

    name: str
    limit: float


CASES = {
    "dense": Case("dense: 20-16-10", 0.7),
    "digits": Case("dense: 64-128-64-10, dropout", 0.7),
    "images": Case("2 convolutions, 28x28, batch normalisation", 1.0),
    "sequence": Case("embedding, LSTM of 32, 20 tokens", 1.0),
}


def fitting(model: Any, data: tuple[np.ndarray, np.ndarray], num_replicas: int) -> float:
    """Trains for an epoch and returns the seconds of a step."""
    start = time.perf_counter()
    fit(model, data, num_replicas)
    return (time.perf_counter() - start) / STEPS


def sides(name: str, num_replicas: int) -> dict[str, Callable[[], float]]:
    data = make_data(name, num_replicas)
    parallel = keras.distribution.DataParallel(
        devices=[f"cpu:{i}" for i in range(num_replicas)], auto_shard_dataset=False
    )
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    one_device = make_model(name)
    with parallel.scope():
        distributed = make_model(name)
    with strategy.scope():
        ours = make_model(name)

    def fit_distributed() -> float:
        with parallel.scope():
            return fitting(distributed, data, num_replicas)

    return {
        "one device": lambda: fitting(one_device, data, num_replicas),
        "DataParallel": fit_distributed,
        "stratagem": lambda: fitting(ours, data, num_replicas),
    }


def tensorflow_seconds(python: str, name: str, num_replicas: int, rounds: int) -> float:
    script = Path(__file__).with_name("keras_fit_tensorflow.py")
    command = [python, str(script), name, str(num_replicas), str(rounds)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--tensorflow-python", help="an interpreter that has TensorFlow")
    options = parser.parse_args()
    sg.config.set_num_cpu_devices(max(options.replicas))
    print(
        f"{'model':44} devices  one device  DataParallel  stratagem  of DataParallel  limit"
        + ("  tensorflow  of tensorflow" if options.tensorflow_python else "")
    )
    for name in options.cases:
        for num_replicas in options.replicas:
            runs = sides(name, num_replicas)
            times: dict[str, list[float]] = {side: [] for side in runs}
            for round_ in range(options.rounds + 1):
                for side, run in runs.items():
                    seconds = run()
                    if round_:  # the first one compiles
                        times[side].append(seconds)
            one, parallel, ours = (statistics.median(times[side]) * 1e6 for side in runs)
            line = (
                f"{CASES[name].name:44} {num_replicas:7}  {one:7.0f} us    {parallel:7.0f} us"
                f" {ours:7.0f} us  {ours / parallel:15.2f}  {CASES[name].limit:5.2f}"
            )
            if options.tensorflow_python:
                theirs = 1e6 * tensorflow_seconds(
                    options.tensorflow_python, name, num_replicas, options.rounds
                )
                line += f"  {theirs:7.0f} us  {ours / theirs:13.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
