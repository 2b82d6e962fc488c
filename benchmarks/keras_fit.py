"""Keras ``fit`` under ``MirroredStrategy`` against one device and ``keras.distribution.DataParallel``.

Also under ``CentralStorageStrategy``, and on parameter servers, in steps of all workers per second.

All sides train the same model on the same arrays with the same batches, input and callbacks included,
each in a process of its own. Rounds of the sides are interleaved; a figure is the median time of a step.
With ``--tensorflow-python`` naming an interpreter that has TensorFlow, its Keras runs under its
MirroredStrategy too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras_fit_servers import (
    NUM_WORKERS,
    steps_per_second,
    tensorflow_steps_per_second,
)
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
STRATEGIES: dict[str, Callable[[list[str]], sg.distribute.Strategy]] = {
    "stratagem": sg.distribute.MirroredStrategy,
    "central storage": lambda devices: sg.distribute.CentralStorageStrategy(devices, "CPU:0"),
}
SIDES = ("one device", "DataParallel", *STRATEGIES)


def take_part(side: str, name: str, num_replicas: int) -> None:
    """Trains for an epoch whenever it reads a line, and prints the seconds of a step."""
    sg.config.set_num_cpu_devices(num_replicas)
    data = make_data(name, num_replicas)
    devices = [f"cpu:{i}" for i in range(num_replicas)]
    scope: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    if side == "DataParallel":
        scope = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False).scope
    if side in STRATEGIES:
        scope = STRATEGIES[side]([device.upper() for device in devices]).scope
    with scope():
        model = make_model(name)
    for _ in sys.stdin:
        # DataParallel trains in its scope only; ours is left, as the documentation has it.
        with scope() if side == "DataParallel" else contextlib.nullcontext():
            start = time.perf_counter()
            fit(model, data, num_replicas)
            print((time.perf_counter() - start) / STEPS, flush=True)


class Side:
    """A process that takes part, and is started again if it hangs.

    ``DataParallel`` queues programs without waiting, whose collectives then block one another now and
    then; XLA ends the process for it.
    """

    def __init__(self, side: str, name: str, num_replicas: int) -> None:
        self._arguments = [sys.executable, __file__, "--take-part", side, name, str(num_replicas)]
        limits = {"warn_stuck": 5, "terminate": 5}
        flags = [f"--xla_cpu_collective_call_{x}_timeout_seconds={n}" for x, n in limits.items()]
        self._environment = os.environ | {"XLA_FLAGS": " ".join(flags)}
        self._process: subprocess.Popen[str] | None = None
        self.hung = 0

    def fit(self) -> float:
        """Returns the seconds of a step."""
        while True:
            if self._process is None:
                self._process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                    text=True,
                )
                self._epoch()  # compiles
            if (seconds := self._epoch()) is not None:
                return seconds
            if (code := self.end()) != -signal.SIGABRT:
                raise RuntimeError(f"{shlex.join(self._arguments)} ended with {code}.")
            self.hung += 1

    def _epoch(self) -> float | None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return float(answer) if answer else None

    def end(self) -> int:
        """Ends the process, if there is one; returns its exit code."""
        if self._process is None:
            return 0
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        code = self._process.wait()
        self._process = None
        return code


def tensorflow_seconds(python: str, name: str, num_replicas: int, rounds: int) -> float:
    script = Path(__file__).with_name("keras_fit_tensorflow.py")
    command = [python, str(script), name, str(num_replicas), str(rounds)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def measure(name: str, num_replicas: int, rounds: int) -> tuple[list[float], list[int]]:
    """Returns the microseconds of a step of each side, and how often it hung."""
    sides = [Side(side, name, num_replicas) for side in SIDES]
    try:
        times = [[side.fit() for side in sides] for _ in range(rounds)]
    finally:
        for side in sides:
            side.end()
    medians = [statistics.median(column) * 1e6 for column in zip(*times, strict=True)]
    return medians, [side.hung for side in sides]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--workers", nargs="*", type=int, default=list(NUM_WORKERS))
    parser.add_argument("--tensorflow-python", help="an interpreter that has TensorFlow")
    parser.add_argument("--take-part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.take_part:
        side, name, num_replicas = options.take_part
        take_part(side, name, int(num_replicas))
        return
    print(
        f"{'model':44} devices  one device  DataParallel  stratagem  of DataParallel  limit"
        "  central storage" + ("  tensorflow  of tensorflow" if options.tensorflow_python else "")
    )
    for name in options.cases:
        for num_replicas in options.replicas:
            (one, parallel, ours, central), hung = measure(name, num_replicas, options.rounds)
            line = (
                f"{CASES[name].name:44} {num_replicas:7}  {one:7.0f} us    {parallel:7.0f} us"
                f" {ours:7.0f} us  {ours / parallel:15.2f}  {CASES[name].limit:5.2f}"
                f"  {central:12.0f} us"
            )
            if options.tensorflow_python:
                theirs = 1e6 * tensorflow_seconds(
                    options.tensorflow_python, name, num_replicas, options.rounds
                )
                line += f"  {theirs:7.0f} us  {ours / theirs:13.2f}"
            hangs = [f"{side} hung {n} times" for side, n in zip(SIDES, hung, strict=True) if n]
            print(line, *hangs, sep="  ", flush=True)
    if options.workers:
        print_servers(options)


def print_servers(options: argparse.Namespace) -> None:
    """Prints the steps per second on one parameter server, by number of workers."""
    print(
        "\n100,000-row embedding on a server, steps/s  workers      fit  by hand  fit of by hand",
        end="",
    )
    print("  tensorflow by hand  fit of it" if options.tensorflow_python else "")
    for num_workers in options.workers:
        figures = steps_per_second(num_workers, options.rounds)
        fitted, by_hand = figures["fit"], figures["by hand"]
        line = f"{num_workers:49} {fitted:8.0f} {by_hand:8.0f}  {fitted / by_hand:14.2f}"
        if options.tensorflow_python:
            theirs = tensorflow_steps_per_second(
                options.tensorflow_python, num_workers, options.rounds
            )
            line += f"  {theirs:18.0f}  {fitted / theirs:9.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
