"""Memory and time of sharded optimizer state (ZeRO-1) and full sharding (FSDP), against mirrored variables.

An Adam step with mirrored variables and state; with mirrored variables and sharded state
(``Optimizer(shard_state=True)``, ZeRO-1); with both sharded (``FullySharded``, FSDP). For each:

* ``at rest``: bytes of variables and state on the first device, between steps;
* ``in a step``: peak memory of one device as XLA plans it: arguments, results and temporaries;
* ``process``: peak resident memory of a separate process with all virtual devices, minus that of one
  that only starts;
* ``time``: of a step, as a ratio to mirrored. Rounds are interleaved; the ratio is that of medians.

Virtual CPU devices share one memory: an all-gather is a copy. Networks and GPUs have other ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

WAYS = ("mirrored", "shard_state", "FullySharded")
MEGABYTE = 2**20


class Case(NamedTuple):
    """A model: layers of their own, or one stack of them that ``lax.scan`` goes through."""

    name: str
    layers: int
    width: int
    stacked: bool
    rows: int = 8


CASES = [
    Case("50 layers of 64", 50, 64, stacked=False),
    Case("4 layers of 256", 4, 256, stacked=False),
    Case("8 layers of 1024", 8, 1024, stacked=False),
    Case("8 layers of 1024, stacked", 8, 1024, stacked=True),
]


class Trained(NamedTuple):
    """A step, and the variables that it keeps."""

    step: Callable[[], Any]
    held: Callable[[], list[sg.Variable]]


def build(case: Case, way: str, num_devices: int) -> Trained:
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    random = np.random.default_rng(0)
    kernels = random.normal(size=(case.layers, case.width, case.width)).astype(np.float32)
    kernels /= np.sqrt(case.width)
    block = (
        sg.distribute.experimental.FullySharded()
        if way == "FullySharded"
        else contextlib.nullcontext()
    )
    with strategy.scope(), block:
        variables = [sg.Variable(k) for k in ([kernels] if case.stacked else kernels)]
    optimizer = sg.train.Optimizer(optax.adam(1e-3), shard_state=way == "shard_state")
    optimizer.build(variables)
    x = random.normal(size=(case.rows, case.width)).astype(np.float32)
    batch = strategy.experimental_distribute_values_from_function(lambda _: x)

    def loss(x: jax.Array) -> jax.Array:
        if case.stacked:
            (stack,) = variables

            @jax.checkpoint
            def layer(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
                return jnp.tanh(x @ stack[i]), None

            x, _ = jax.lax.scan(layer, x, jnp.arange(case.layers))
        else:
            for variable in variables:
                x = jnp.tanh(x @ variable)
        return jnp.mean((x - 1) ** 2)

    def replica(x: jax.Array) -> jax.Array:
        value, gradients = sg.value_and_grad(loss, variables)(x)
        optimizer.apply(gradients, variables)
        return value

    @sg.function
    def step() -> Any:
        return strategy.reduce("MEAN", strategy.run(replica, args=(batch,)), axis=None)

    return Trained(step, lambda: [*variables, *optimizer.variables])


def at_rest(trained: Trained) -> int:
    return sum(v.snapshot().addressable_shards[0].data.nbytes for v in trained.held())


def in_a_step(trained: Trained) -> int:
    ((entry,),) = trained.step._programs._entries.values()  # type: ignore[attr-defined]
    program = entry.program
    donated, kept = program.variables.borrow(program.variables.hold())
    planned = program.jitted.lower(donated, kept, program.consts, []).compile().memory_analysis()
    return (
        planned.argument_size_in_bytes
        + planned.output_size_in_bytes
        - planned.alias_size_in_bytes
        + planned.temp_size_in_bytes
    )


def most_of_process(case: Case, way: str | None, num_devices: int) -> int:
    """Returns the largest resident size of a process that trains, or for ``None`` that only starts."""
    command = [sys.executable, __file__, "--alone", case.name, way or "", str(num_devices)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def alone(name: str, way: str, num_devices: int) -> None:
    case = next(case for case in CASES if case.name == name)
    if way:
        trained = build(case, way, num_devices)
        for _ in range(3):
            trained.step()
    else:
        jax.devices()
        jnp.ones(8).sum().block_until_ready()
    # Not ru_maxrss, which a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text()
    print(1024 * int(status.partition("VmHWM:")[2].split()[0]))


def times(steps: list[Callable[[], Any]], seconds: float) -> list[float]:
    found: list[list[float]] = [[] for _ in steps]
    for step in steps:
        jax.block_until_ready(step())
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 5:
        for step, of_step in zip(steps, found, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(step())
            of_step.append(time.perf_counter() - start)
    return [statistics.median(of_step) for of_step in found]


def measure(case: Case, num_devices: int, seconds: float) -> dict[str, dict[str, float]]:
    ways = {way: build(case, way, num_devices) for way in WAYS}
    medians = times([trained.step for trained in ways.values()], seconds)
    started = most_of_process(case, None, num_devices)
    return {
        way: {
            "milliseconds": 1000 * median,
            "ratio": median / medians[0],
            "at rest MB": at_rest(trained) / MEGABYTE,
            "in a step MB": in_a_step(trained) / MEGABYTE,
            "process MB": (most_of_process(case, way, num_devices) - started) / MEGABYTE,
        }
        for (way, trained), median in zip(ways.items(), medians, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4, help="time for each model")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        name, way, count = options.alone
        alone(name, way, int(count))
        return
    results = {case.name: measure(case, options.devices, options.seconds) for case in CASES}
    if options.json:
        print(json.dumps({"devices": options.devices, "results": results}, indent=1))
        return
    print(
        f"{options.devices} virtual devices, Adam; memory of one device, and of the process, in MB"
    )
    print(f"{'model':28}{'sharding':18}{'at rest':>10}{'in a step':>11}{'process':>10}{'time':>9}")
    for name, ways in results.items():
        for way, row in ways.items():
            print(
                f"{name:28}{way:18}{row['at rest MB']:10.1f}{row['in a step MB']:11.1f}"
                f"{row['process MB']:10.0f}{row['ratio']:8.2f} x"
            )


if __name__ == "__main__":
    main()
