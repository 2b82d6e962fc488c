"""A compiled step against the same step written by hand with ``jax.shard_map``.

Both sides do the same: forward, backward, gradients joined into the same packs, plain SGD, parameters
given away to the program, and one step in flight at a time (see stratagem/core/launch.py). Rounds of
the two sides are interleaved; the ratio is that of the medians. With ``--tensorflow-python`` naming an
interpreter that has TensorFlow, the same steps run under its MirroredStrategy too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stratagem as sg
from stratagem._src.collectives.packing import PACK_BYTES, plan_packs

LEARNING_RATE = 0.01
ROWS_PER_REPLICA = 32


class Case(NamedTuple):
    """A model to step, and how much slower than by hand it may be."""

    name: str
    shapes: list[tuple[int, ...]]
    limit: float


CASES = [
    Case("tiny: 2 layers of 8", [(8, 8), (8,), (8, 8), (8,)], 1.15),
    Case("MLP: 4 layers of 256", [(256, 256), (256,)] * 4, 1.05),
    Case("50 variables of 64x64", [(64, 64)] * 50, 1.05),
]


def predict(parameters: list[jax.Array], x: jax.Array) -> jax.Array:
    for parameter in parameters:
        x = jnp.tanh(x @ parameter) if parameter.ndim == 2 else x + parameter
    return x


def initial_parameters(case: Case) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(random.normal(size=s) / np.sqrt(s[0])).astype(np.float32) for s in case.shapes]


def batch(case: Case, num_replicas: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    width = case.shapes[0][0]
    x = random.normal(size=(ROWS_PER_REPLICA * num_replicas, width)).astype(np.float32)
    return x, np.roll(x, 1, axis=1)


def by_hand(case: Case, devices: list[jax.Device]) -> Callable[[], float]:
    mesh = Mesh(np.array(devices), ("replica",))
    replicated = NamedSharding(mesh, PartitionSpec())
    sharded = NamedSharding(mesh, PartitionSpec("replica"))

    packs = plan_packs(initial_parameters(case), bytes_per_pack=PACK_BYTES)

    def replica_step(parameters, x, y):
        def loss_fn(parameters):
            return jnp.mean((predict(parameters, x) - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(parameters)
        updated = list(parameters)
        for pack in packs:
            flat = jnp.concatenate([gradients[i].ravel() for i in pack])
            flat = jax.lax.pmean(flat, "replica")
            starts = np.cumsum([0, *(gradients[i].size for i in pack)])
            for i, start in zip(pack, starts, strict=False):
                part = flat[start : start + parameters[i].size].reshape(parameters[i].shape)
                updated[i] = parameters[i] - LEARNING_RATE * part
        return updated, jax.lax.pmean(loss, "replica")

    step = jax.jit(
        jax.shard_map(
            replica_step,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("replica"), PartitionSpec("replica")),
            out_specs=PartitionSpec(),
            check_vma=False,
        ),
        donate_argnums=0,
    )
    parameters = [jax.device_put(p, replicated) for p in initial_parameters(case)]
    x, y = (jax.device_put(a, sharded) for a in batch(case, len(devices)))
    loss = jnp.zeros(())

    def call() -> float:
        nonlocal parameters, loss
        if len(devices) > 1:
            loss.block_until_ready()
        parameters, loss = step(parameters, x, y)
        return loss

    return call


def with_stratagem(case: Case, devices: list[jax.Device]) -> Callable[[], float]:
    strategy = sg.distribute.MirroredStrategy(devices)
    with strategy.scope():
        variables = [sg.Variable(p) for p in initial_parameters(case)]

    def apply(strategy, gradients):
        pairs = list(zip(gradients, variables, strict=True))
        for gradient, variable in zip(
            strategy.extended.batch_reduce_to("MEAN", pairs), variables, strict=True
        ):
            strategy.extended.update(
                variable, lambda v, g: v.assign_sub(LEARNING_RATE * g), args=(gradient,)
            )

    def replica_step(x, y):
        def loss_fn():
            return jnp.mean((predict([v.value() for v in variables], x) - y) ** 2)

        loss, gradients = sg.value_and_grad(loss_fn, variables)()
        sg.distribute.get_replica_context().merge_call(apply, args=(gradients,))
        return loss

    @sg.function
    def step(x, y):
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(x, y)), axis=None)

    dataset = sg.data.Dataset.from_tensors(batch(case, len(devices)))
    x, y = next(iter(strategy.experimental_distribute_dataset(dataset)))
    return lambda: step(x, y)


def interleave(sides: list[Callable[[], jax.Array]], rounds: int, steps: int) -> list[list[float]]:
    """Returns microseconds a step, for each side and round."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        for _ in range(steps):
            result = side()
        result.block_until_ready()
    for _ in range(rounds):
        for side, record in zip(sides, times, strict=True):
            start = time.perf_counter()
            for _ in range(steps):
                result = side()
            result.block_until_ready()
            record.append((time.perf_counter() - start) / steps * 1e6)
    return times


def tensorflow_times(python: str, num_devices: int, rounds: int, steps: int) -> dict[str, float]:
    script = Path(__file__).with_name("step_tensorflow.py")
    cases = [(case.name, case.shapes) for case in CASES]
    request = {
        "cases": cases,
        "num_devices": num_devices,
        "rows": ROWS_PER_REPLICA,
        "learning_rate": LEARNING_RATE,
        "rounds": rounds,
        "steps": steps,
    }
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"TensorFlow side failed:\n{done.stderr}")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    flags = parser.parse_args()
    sg.config.set_num_cpu_devices(max(flags.devices))

    print(
        f"{'step':24} {'devices':>7} {'by hand':>10} {'stratagem':>10} {'ratio':>6} {'limit':>6}"
        + ("  tensorflow  ratio" if flags.tensorflow_python else "")
    )
    for num_devices in flags.devices:
        peer = {}
        if flags.tensorflow_python:
            peer = tensorflow_times(flags.tensorflow_python, num_devices, flags.rounds, flags.steps)
        devices = jax.devices()[:num_devices]
        for case in CASES:
            sides = [by_hand(case, devices), with_stratagem(case, devices)]
            hand, ours = (
                statistics.median(t) for t in interleave(sides, flags.rounds, flags.steps)
            )
            row = (
                f"{case.name:24} {num_devices:7} {hand:7.0f} us {ours:7.0f} us {ours / hand:6.2f} "
                f"{case.limit:6.2f}"
            )
            if peer:
                row += f"  {peer[case.name]:7.0f} us {peer[case.name] / ours:6.1f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
