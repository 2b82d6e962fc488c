"""Checkpoints against Orbax: write throughput, and how long a save blocks training steps.

Both save the same arrays, which a compiled step changes in place between saves, with the same library
below (TensorStore), and go on while files are written. Rounds are interleaved; medians are shown. Beside
it a table on two parameter servers, processes of their own that write their own rows.

What a save holds up is what it and the steps after it take beyond as many steps without a save: a value
that is being saved cannot be overwritten, so that the next step needs other memory. The arrays are
random: Orbax compresses, which makes little of weights and much of zeros.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from parameter_server import cluster_of

import stratagem as sg

NUM_ARRAYS, ROWS, WIDTH = 16, 4000, 1000
NUM_STEPS_AFTER = 3
MEGABYTES = NUM_ARRAYS * ROWS * WIDTH * 4 / 1e6


class Side(NamedTuple):
    """One library.

    Attributes:
        step: Changes all arrays in place, and waits for that.
        save: Saves them in a new directory, and returns when steps may go on.
        wait: Waits for the disk.
    """

    step: Callable[[], Any]
    save: Callable[[Path], Any]
    wait: Callable[[], Any]


def random_arrays() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(1), NUM_ARRAYS)
    return [jax.random.normal(key, (ROWS, WIDTH)) for key in keys]


def stratagem_side() -> Side:
    variables = [sg.Variable(array) for array in random_arrays()]
    checkpoint = sg.train.Checkpoint(arrays=variables)

    @sg.function
    def shrink() -> jax.Array:
        for v in variables:
            v.assign(v * 0.999)
        return jnp.sum(variables[-1][0])

    return Side(lambda: float(shrink()), checkpoint.write, checkpoint.sync)


def orbax_side() -> Side:
    state = [random_arrays()]
    checkpointer = ocp.StandardCheckpointer()

    @functools.partial(jax.jit, donate_argnums=0)
    def shrink(arrays: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        shrunk = [array * 0.999 for array in arrays]
        return shrunk, jnp.sum(shrunk[-1][0])

    def step() -> None:
        state[0], total = shrink(state[0])
        float(total)

    def save(path: Path) -> None:
        checkpointer.save(path, {"arrays": state[0]})

    return Side(step, save, checkpointer.wait_until_finished)


def timed(do: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def round_of(side: Side, directory: Path) -> tuple[float, float, float]:
    """Returns seconds: of a step, of what a save holds up, and until it is on the disk."""
    one_step = statistics.median(timed(side.step) for _ in range(5))
    path = directory / "saved"

    def save_and_go_on() -> None:
        side.save(path)
        for _ in range(NUM_STEPS_AFTER):
            side.step()

    held_up = timed(save_and_go_on) - NUM_STEPS_AFTER * one_step
    side.wait()
    shutil.rmtree(path)
    # Apart, with nothing beside it.
    on_disk = timed(lambda: (side.save(path), side.wait()))
    shutil.rmtree(path)
    return one_step, held_up, on_disk


def on_servers(num_rounds: int, directory: Path) -> float:
    """Returns the seconds until a table of the same size on two parameter servers is on the disk."""
    with cluster_of(num_workers=1, num_ps=2) as cluster:
        strategy = sg.distribute.ParameterServerStrategy(
            sg.distribute.cluster_resolver.SimpleClusterResolver(cluster),
            variable_partitioner=sg.distribute.partitioners.FixedShardsPartitioner(2),
        )
        shape = (NUM_ARRAYS * ROWS, WIDTH)
        with strategy.scope():
            table = sg.Variable(
                sg.distribute.experimental.RowInitializer(
                    lambda rows: np.random.default_rng(rows[0]).normal(size=(len(rows), WIDTH)),
                    shape=shape,
                )
            )
        checkpoint = sg.train.Checkpoint(table=table)
        seconds = []
        for _ in range(num_rounds + 1):
            path = directory / "table"
            seconds.append(timed(lambda path=path: (checkpoint.write(path), checkpoint.sync())))
            shutil.rmtree(path)
        return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--directory", type=Path, help="where to write; default a temporary directory"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        sides = {"orbax": orbax_side(), "stratagem": stratagem_side()}
        for side in sides.values():
            round_of(side, directory)
        rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, side in sides.items():
                rounds[name].append(round_of(side, directory))
        table = on_servers(arguments.rounds, directory)
    medians = {
        name: [statistics.median(x) for x in zip(*r, strict=True)] for name, r in rounds.items()
    }
    print(f"{MEGABYTES:.0f} MB in {NUM_ARRAYS} arrays, medians of {arguments.rounds} rounds")
    print(f"{'':24}{'orbax':>10}{'stratagem':>11}{'ratio':>7}{'limit':>7}")
    _show("a step, ms", [1e3 * medians[name][0] for name in sides])
    _show("blocked by a save, ms", [1e3 * medians[name][1] for name in sides], limit=1.0)
    _show("saved, MB/s", [MEGABYTES / medians[name][2] for name in sides], limit=0.95)
    _show("by 2 servers, MB/s", [MEGABYTES / medians["orbax"][2], MEGABYTES / table])


def _show(what: str, figures: list[float], limit: float | None = None) -> None:
    """Prints a line; the ratio is ours to Orbax'."""
    orbax, ours = figures
    shown = "" if limit is None else f"{limit:7.2f}"
    print(f"{what:24}{orbax:10.1f}{ours:11.1f}{ours / orbax:7.2f}{shown}")


if __name__ == "__main__":
    main()
