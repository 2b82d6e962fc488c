"""All-reduces and full training steps between processes on loopback, against hand-written JAX.

An all-reduce is compared with a bare ``psum`` under ``jax.distributed``, a step with a ``shard_map`` that
packs gradients and loss into one ``pmean``. Both sides run in the same processes, in turn; the ratio is
that of the medians. Where ``--tensorflow-python`` and ``--torch-python`` name interpreters that have them,
the same sizes are reduced by TensorFlow's MultiWorkerMirroredStrategy and by torch's Gloo, between as many
processes. ``--variants`` also measures other ways to reduce between two: in pieces, as bfloat16 on the
wire, by exchanging whole arrays.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem.testing import run_cluster

SIZES = {"4 kB": 2**10, "1 MB": 2**18, "25 MB": 25 * 2**18, "100 MB": 100 * 2**18}
LIMIT = 1.05
LAYOUTS = {"2 x 1": (2, 1), "3 x 1": (3, 1), "4 x 1": (4, 1), "2 x 2": (2, 2)}
"""Processes, and devices of each."""

WIDTHS = {"1 MB": 256, "25 MB": 1280}
"""Of a network with gradients of that size."""

FIRST_STEP = """
import jax.numpy as jnp
import stratagem as sg
strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    v = sg.Variable(1.0)
step = sg.function(lambda: strategy.reduce("SUM", strategy.run(lambda: v * 2), axis=None))
assert float(step()) == 4
"""


def measure(rounds: int, with_variants: bool) -> dict[str, dict[str, float]]:
    """Returns milliseconds of all-reduces and steps, in a worker, by what is done and by which way."""
    import stratagem as sg

    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    found = {}
    for size, count in SIZES.items():
        ways = all_reduces(strategy, count, with_variants)
        found[f"all-reduce, {size}"] = medians(ways, rounds, repeats=20 if count <= 2**18 else 1)
    from multi_worker_step import steps

    for size, width in WIDTHS.items():
        found[f"step, {size}"] = medians(steps(strategy, width), rounds, repeats=1)
    return found


def medians(ways: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, float]:
    """Returns milliseconds of each way; rounds of all ways are interleaved."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(rounds + 2):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(repeats):
                way()
            if round_number >= 2:
                times[name].append((time.perf_counter() - start) / repeats * 1e3)
    return {name: statistics.median(of_way) for name, of_way in times.items()}


def all_reduces(strategy: Any, count: int, with_variants: bool) -> dict[str, Callable[[], Any]]:
    """Returns ways to reduce ``count`` floats of each replica, by name."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    import stratagem as sg

    group = strategy.replica_group
    local = np.random.default_rng(0).random(count, np.float32)
    array = group.assemble([local] * len(jax.local_devices()))

    def bare(body: Callable[[Any], Any]) -> Callable[[], Any]:
        program = jax.jit(
            jax.shard_map(
                body,
                mesh=group.mesh,
                in_specs=PartitionSpec("replica"),
                out_specs=PartitionSpec(),
                check_vma=False,
            )
        )
        return lambda: jax.block_until_ready(program(array))

    def in_pieces(number: int) -> Callable[[Any], Any]:
        return lambda x: jnp.concatenate(
            [jax.lax.psum(piece, "replica") for piece in jnp.split(x, number)]
        )

    def replica_step(x: Any) -> Any:
        return sg.distribute.get_replica_context().all_reduce("SUM", x)

    step = sg.function(lambda x: strategy.run(replica_step, args=(x,)))
    value = sg.function(lambda x: strategy.run(lambda: x))(jnp.asarray(local))
    ways = {
        "by hand": bare(lambda x: jax.lax.psum(x, "replica")),
        "stratagem": lambda: jax.block_until_ready(step(value).values),
    }
    if with_variants:
        ways |= {f"{number} pieces": bare(in_pieces(number)) for number in (2, 4, 8)}
        ways["bfloat16"] = bare(
            lambda x: jax.lax.psum(x.astype(jnp.bfloat16), "replica").astype(jnp.float32)
        )
        ways["gather, then add"] = bare(lambda x: jax.lax.all_gather(x, "replica").sum(0))
        ways["exchange, then add"] = bare(
            lambda x: x + jax.lax.ppermute(x, "replica", [(0, 1), (1, 0)])
        )
    return ways


def peer_times(python: str, script: str, num_processes: int, rounds: int) -> dict[str, float]:
    """Returns milliseconds for each size, measured by a script in processes of another library."""
    with ReservedPorts(num_processes) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        processes = []
        for index in range(num_processes):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            command = [
                python,
                str(Path(__file__).with_name(script)),
                json.dumps(SIZES),
                str(rounds),
            ]
            environment = {**os.environ, "TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"}
            processes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            )
        try:
            outputs = [process.communicate(timeout=600)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    times: dict[str, float] = json.loads(outputs[0].strip().splitlines()[-1])
    return times


def seconds_to_first_step() -> float:
    """Returns seconds from ``stratagem run`` until two workers have run a step and ended."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first_step.py"
        script.write_text(FIRST_STEP)
        start = time.perf_counter()
        command = [sys.executable, "-m", "stratagem", "run", "--workers", "2", str(script)]
        subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--variants", action="store_true", help="also measure other ways to reduce")
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    parser.add_argument("--torch-python", metavar="PYTHON", help="interpreter with torch")
    flags = parser.parse_args()

    pythons = {"tensorflow": flags.tensorflow_python, "torch": flags.torch_python}
    pythons = {name: python for name, python in pythons.items() if python}
    print(
        f"{'processes x devices':20}{'':20}{'by hand':>10} {'stratagem':>11} {'ratio':>6}"
        + "".join(f" {name:>11} {'ratio':>6}" for name in pythons)
    )
    for layout in flags.layouts:
        num_processes, num_devices = LAYOUTS[layout]
        peers = {
            name: peer_times(python, f"multi_worker_{name}.py", num_processes, flags.rounds)
            for name, python in pythons.items()
            if num_devices == 1
        }
        arguments = flags.rounds, flags.variants and layout == "2 x 1"
        found = run_cluster(
            measure, num_processes, arguments, devices_per_worker=num_devices, timeout=600
        )[0]
        for what, times in found.items():
            by_hand, ours = times.pop("by hand"), times.pop("stratagem")
            row = f"{layout:20}{what:20}{by_hand:7.2f} ms {ours:8.2f} ms {ours / by_hand:6.2f}"
            size = what.removeprefix("all-reduce, ")
            for peer in peers.values():
                if size in peer:
                    row += f" {peer[size]:8.2f} ms {peer[size] / ours:6.1f}"
            print(row, flush=True)
            for name, milliseconds in times.items():
                print(f"  {name}: {milliseconds:.2f} ms, {milliseconds / by_hand:.2f} of by hand")
    print(f"limit of the ratio for all-reduces of 2 x 1: {LIMIT}")
    seconds = statistics.median(seconds_to_first_step() for _ in range(3))
    print(f"\n`stratagem run --workers 2` of one step: {seconds:.1f} s, start and end included")


if __name__ == "__main__":
    main()
