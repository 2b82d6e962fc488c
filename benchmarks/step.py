"""A compiled step, written in the usual ways, against the best hand-written JAX step.

By hand is ``jax.shard_map`` (one device: ``jax.jit`` alone) with gradients and loss in one ``pmean``, and
parameters given away to the program. All sides do the same: forward, backward, mean over the replicas,
plain SGD, and one step in flight at a time where there are several devices; ``Optimizer``, which counts
its steps, is compared with a step by hand that counts them too. Rounds of all sides are interleaved, for
seconds where a step takes microseconds; a ratio is the median of those of each round, as the machine may
be quicker in one than in another. The step written with ``GradientTape`` is also compared with the same
step written with ``value_and_grad``, and so is the time until it has run for the first time. With
``--tensorflow-python`` naming an interpreter that has TensorFlow, the same steps run under its
MirroredStrategy too.
"""

from __future__ import annotations

import argparse
import json
import operator
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stratagem as sg

LEARNING_RATE = 0.01
ROWS_PER_REPLICA = 32


class Case(NamedTuple):
    """A model to step, and how much slower than by hand it may be on several devices."""

    name: str
    shapes: list[tuple[int, ...]]
    limit: float


LIMIT_ON_ONE_DEVICE = 1.15

CASES = [
    Case("tiny: 2 layers of 8", [(8, 8), (8,), (8, 8), (8,)], 1.25),
    Case("MLP: 4 layers of 256", [(256, 256), (256,)] * 4, 1.10),
    Case("50 variables of 64x64", [(64, 64)] * 50, 1.10),
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


def by_hand(
    case: Case, devices: list[jax.Device], *, counts_steps: bool
) -> Callable[[], jax.Array]:
    mesh = Mesh(np.array(devices), ("replica",))
    replicated = NamedSharding(mesh, PartitionSpec())
    sharded = NamedSharding(mesh, PartitionSpec("replica"))

    def replica_step(state, x, y):
        parameters, *count = state

        def loss_fn(parameters):
            return jnp.mean((predict(parameters, x) - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(parameters)
        if len(devices) > 1:
            flat, restore = ravel_pytree((gradients, loss))
            gradients, loss = restore(jax.lax.pmean(flat, "replica"))
        updated = [p - LEARNING_RATE * g for p, g in zip(parameters, gradients, strict=True)]
        return [updated, *(n + 1 for n in count)], loss

    mapped = replica_step
    if len(devices) > 1:
        mapped = jax.shard_map(
            replica_step,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("replica"), PartitionSpec("replica")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    step = jax.jit(mapped, donate_argnums=0)
    count = [jnp.zeros((), jnp.int32)] if counts_steps else []
    state = jax.device_put([initial_parameters(case), *count], replicated)
    x, y = (jax.device_put(a, sharded) for a in batch(case, len(devices)))
    loss = jnp.zeros(())

    def call() -> jax.Array:
        nonlocal state, loss
        if len(devices) > 1:
            loss.block_until_ready()
        state, loss = step(state, x, y)
        return loss

    return call


def reduce_then_assign(variables, gradients, loss):
    """Gradients and loss by ``all_reduce``, then ``assign_sub``."""
    replica = sg.distribute.get_replica_context()
    gradients, loss = replica.all_reduce("MEAN", (gradients, loss))
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(LEARNING_RATE * gradient)
    return loss


def assign(variables, gradients, loss):
    """Only ``assign_sub``, which aggregates."""
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(LEARNING_RATE * gradient)
    return loss


class Way(NamedTuple):
    """A way to write the step."""

    name: str
    aggregation: sg.VariableAggregation
    update: Callable[..., Any] | None
    tape: bool = False


WAYS = [
    Way("all_reduce, MEAN", sg.VariableAggregation.MEAN, reduce_then_assign),
    Way("all_reduce, FIRST", sg.VariableAggregation.ONLY_FIRST_REPLICA, reduce_then_assign),
    Way("assign, MEAN", sg.VariableAggregation.MEAN, assign),
    Way("Optimizer", sg.VariableAggregation.NONE, None),
    Way("GradientTape, MEAN", sg.VariableAggregation.MEAN, reduce_then_assign, tape=True),
]
LIMIT_OF_TAPE = 1.02
LIMIT_OF_COMPILING_TAPE = 1.10
_NUM_BUILDS = 5


def with_stratagem(case: Case, devices: list[jax.Device], way: Way) -> Callable[[], jax.Array]:
    strategy = sg.distribute.MirroredStrategy(devices)
    with strategy.scope():
        variables = [sg.Variable(p, aggregation=way.aggregation) for p in initial_parameters(case)]
        optimizer = sg.train.Optimizer(optax.sgd(LEARNING_RATE))

    def apply(variables, gradients, loss):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    update = way.update or apply

    def replica_step(x, y):
        def loss_fn():
            return jnp.mean((predict([v.value() for v in variables], x) - y) ** 2)

        if way.tape:
            with sg.GradientTape() as tape:
                loss = loss_fn()
            gradients = tape.gradient(loss, variables)
        else:
            loss, gradients = sg.value_and_grad(loss_fn, variables)()
        return update(variables, gradients, loss)

    @sg.function
    def step(x, y):
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(x, y)), axis=None)

    dataset = sg.data.Dataset.from_tensors(batch(case, len(devices)))
    x, y = next(iter(strategy.experimental_distribute_dataset(dataset)))
    return lambda: step(x, y)


def interleave(
    sides: list[Callable[[], jax.Array]], rounds: int, steps: int, seconds: float
) -> list[list[float]]:
    """Returns microseconds a step, for each side and round; at least so many rounds and seconds."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        for _ in range(steps):
            result = side()
        result.block_until_ready()
    end = time.perf_counter() + seconds
    while len(times[0]) < rounds or time.perf_counter() < end:
        for side, record in zip(sides, times, strict=True):
            start = time.perf_counter()
            for _ in range(steps):
                result = side()
            result.block_until_ready()
            record.append((time.perf_counter() - start) / steps * 1e6)
    return times


def tape_ratio(
    case: Case, devices: list[jax.Device], rounds: int, steps: int, seconds: float
) -> float:
    """Returns how much longer a step takes with a tape than with ``value_and_grad``.

    XLA makes the same program of both, so that what differs is where their arrays happen to lie and what
    runs before them: steps are built several times, and each way runs first as often as second.
    """
    ratios = []
    for _ in range(_NUM_BUILDS):
        function, tape = (with_stratagem(case, devices, way) for way in (WAYS[0], WAYS[-1]))
        sides = [function, tape, tape, function]
        first, second, third, fourth = interleave(
            sides, rounds // _NUM_BUILDS, steps, seconds / _NUM_BUILDS
        )
        ratios += [
            (b + c) / (a + d) for a, b, c, d in zip(first, second, third, fourth, strict=True)
        ]
    return statistics.median(ratios)


def compile_ratio(case: Case, devices: list[jax.Device], rounds: int) -> float:
    """Returns how much longer the first step takes with a tape than with ``value_and_grad``."""
    by_function, by_tape = WAYS[0], WAYS[-1]

    def first(way: Way) -> float:
        jax.clear_caches()
        step = with_stratagem(case, devices, way)
        start = time.perf_counter()
        step().block_until_ready()
        return time.perf_counter() - start

    first(by_function), first(by_tape)
    return statistics.median(first(by_tape) / first(by_function) for _ in range(rounds))


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
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    flags = parser.parse_args()
    sg.config.set_num_cpu_devices(max(flags.devices))

    print(
        f"{'step':22} {'devices':>7} {'by hand':>9} {'written with':18} {'time':>9}  ratio  limit"
        + ("  tensorflow  ratio" if flags.tensorflow_python else "")
    )
    for num_devices in flags.devices:
        peer = {}
        if flags.tensorflow_python:
            peer = tensorflow_times(flags.tensorflow_python, num_devices, flags.rounds, flags.steps)
        devices = jax.devices()[:num_devices]
        for case in CASES:
            limit = LIMIT_ON_ONE_DEVICE if num_devices == 1 else case.limit
            hands = [by_hand(case, devices, counts_steps=counts) for counts in (False, True)]
            sides = [*hands, *(with_stratagem(case, devices, way) for way in WAYS)]
            times = interleave(sides, flags.rounds, flags.steps, flags.seconds)
            plain, counting, *ours = times
            for way, times_of_way in zip(WAYS, ours, strict=True):
                hand = plain if way.update else counting
                time_of_way = statistics.median(times_of_way)
                ratio = statistics.median(map(operator.truediv, times_of_way, hand))
                row = (
                    f"{case.name:22} {num_devices:7} {statistics.median(hand):6.0f} us {way.name:18} "
                    f"{time_of_way:6.0f} us {ratio:6.2f} {limit:6.2f}"
                )
                if peer:
                    row += f"  {peer[case.name]:7.0f} us {peer[case.name] / time_of_way:6.1f}"
                print(row, flush=True)
            of_step = tape_ratio(case, devices, flags.rounds, flags.steps, flags.seconds)
            of_compiling = compile_ratio(case, devices, flags.rounds)
            print(
                f"{case.name:22} {num_devices:7} GradientTape / value_and_grad: step {of_step:.2f} (limit "
                f"{LIMIT_OF_TAPE:.2f}), first call {of_compiling:.2f} (limit "
                f"{LIMIT_OF_COMPILING_TAPE:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
