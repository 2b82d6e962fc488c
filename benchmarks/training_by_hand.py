"""A network of ``training.py`` trained with plain JAX, as fast as we can write it; started by it.

One ``shard_map`` with small gradients and the loss packed into one ``psum``, donated state, and batches
that are put on the devices while the step before runs. Prints examples per second as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import jax
import numpy as np
import optax
import training_models
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from training_rate import examples_per_second

LARGE = 1 << 18


def main() -> None:
    name, num_devices, num_processes, seconds = json.loads(sys.argv[1])
    if num_processes > 1:
        config = json.loads(os.environ["TF_CONFIG"])
        jax.distributed.initialize(
            config["cluster"]["worker"][0], num_processes, config["task"]["index"]
        )
    else:
        jax.config.update("jax_num_cpu_devices", num_devices)
    task, mesh = training_models.TASKS[name], Mesh(jax.devices(), ("replica",))
    rows, whole = PartitionSpec("replica"), PartitionSpec()
    sharding = NamedSharding(mesh, rows)
    optimizer = optax.adam(training_models.LEARNING_RATE)
    parameters = training_models.make_parameters(name)
    place = jax.jit(lambda values: values, out_shardings=NamedSharding(mesh, whole))
    state = place((parameters, optimizer.init(parameters)))

    def summed(tree: Any) -> Any:
        """Sums over the devices: small arrays together, large ones without packing them first."""
        if mesh.size == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        small = [leaf for leaf in leaves if leaf.size < LARGE]
        packed, unpack = ravel_pytree(small)
        rest = iter(unpack(jax.lax.psum(packed, "replica")))
        sums = [
            next(rest) if leaf.size < LARGE else jax.lax.psum(leaf, "replica") for leaf in leaves
        ]
        return jax.tree.unflatten(structure, sums)

    def replica_step(state: Any, inputs: Any, labels: Any) -> Any:
        parameters, moments = state

        def loss(parameters: Any) -> Any:
            return training_models.losses(name, parameters, inputs, labels).sum() / task.batch

        value, gradients = summed(jax.value_and_grad(loss)(parameters))
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(parameters, updates), moments), value

    step_program = jax.jit(
        jax.shard_map(
            replica_step,
            mesh=mesh,
            in_specs=(whole, rows, rows),
            out_specs=(whole, whole),
            check_vma=False,
        ),
        donate_argnums=0,
    )
    data, random = training_models.make_data(name), np.random.default_rng(2)
    share = task.batch // num_processes
    first = share * jax.process_index()

    def batches() -> Any:
        while True:
            order = random.permutation(task.examples)
            for start in range(0, task.examples, task.batch):
                mine = order[start + first : start + first + share]
                yield [
                    jax.make_array_from_process_local_data(sharding, part[mine]) for part in data
                ]

    source = batches()
    ready = next(source)
    last: Any = None

    def step() -> None:
        nonlocal state, ready, last
        if last is not None and mesh.size > num_processes:
            last.block_until_ready()  # XLA's CPU devices deadlock with more programs in flight
        state, last = step_program(state, *ready)
        ready = next(source)

    def agreed(steps: int) -> int:
        return int(multihost_utils.broadcast_one_to_all(np.int32(steps)))

    rate = examples_per_second(step, lambda: float(last), task.batch, seconds, agreed)
    print(json.dumps(rate), flush=True)


if __name__ == "__main__":
    main()
