"""All-reduce between two processes on loopback, against bare ``psum`` under ``jax.distributed``.

Both sides run in the same two processes, in turn; the ratio is that of the medians. Where
``--tensorflow-python`` and ``--torch-python`` name interpreters that have them, the same sizes are
reduced by TensorFlow's MultiWorkerMirroredStrategy and by torch's Gloo. ``--variants`` also measures
other ways to reduce: in pieces, as bfloat16 on the wire, by exchanging whole arrays.
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

from stratagem._src.cluster.held_ports import HeldPorts
from stratagem.testing import run_cluster

SIZES = {"4 kB": 2**10, "1 MB": 2**18, "25 MB": 25 * 2**18, "100 MB": 100 * 2**18}
LIMIT = 1.05

FIRST_STEP = """
import jax.numpy as jnp
import stratagem as sg
strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    v = sg.Variable(1.0)
step = sg.function(lambda: strategy.reduce("SUM", strategy.run(lambda: v * 2), axis=None))
assert float(step()) == 4
"""


def measure(count: int, rounds: int, with_variants: bool) -> dict[str, float]:
    """Returns milliseconds of an all-reduce of ``count`` floats, in a worker, by name of the way."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    import stratagem as sg

    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    group = strategy.replica_group
    local = np.random.default_rng(0).random(count, np.float32)
    array = group.join([local])

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
        "psum": bare(lambda x: jax.lax.psum(x, "replica")),
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
    times: dict[str, list[float]] = {name: [] for name in ways}
    repeats = 20 if count <= 2**18 else 1
    for round_number in range(rounds + 2):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(repeats):
                way()
            if round_number >= 2:
                times[name].append((time.perf_counter() - start) / repeats * 1e3)
    return {name: statistics.median(of_way) for name, of_way in times.items()}


def peer_times(python: str, script: str, rounds: int) -> dict[str, float]:
    """Returns milliseconds for each size, measured by a script in two processes of another library."""
    with HeldPorts(2) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        processes = []
        for index in range(2):
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
    parser.add_argument("--variants", action="store_true", help="also measure other ways to reduce")
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    parser.add_argument("--torch-python", metavar="PYTHON", help="interpreter with torch")
    flags = parser.parse_args()

    peers = {}
    if flags.tensorflow_python:
        script = "multi_worker_tensorflow.py"
        peers["tensorflow"] = peer_times(flags.tensorflow_python, script, flags.rounds)
    if flags.torch_python:
        peers["torch"] = peer_times(flags.torch_python, "multi_worker_torch.py", flags.rounds)
    print(
        f"{'all-reduce':10} {'psum':>9} {'stratagem':>10} {'ratio':>6} {'limit':>6}"
        + "".join(f" {name:>11} {'ratio':>6}" for name in peers)
    )
    for size, count in SIZES.items():
        arguments = (count, flags.rounds, flags.variants)
        times = run_cluster(measure, workers=2, args=arguments, timeout=600)[0]
        psum, ours = times.pop("psum"), times.pop("stratagem")
        row = f"{size:10} {psum:6.2f} ms {ours:7.2f} ms {ours / psum:6.2f} {LIMIT:6.2f}"
        for peer in peers.values():
            row += f" {peer[size]:8.2f} ms {peer[size] / ours:6.1f}"
        print(row, flush=True)
        for name, milliseconds in times.items():
            print(f"  {name}: {milliseconds:.2f} ms, {milliseconds / psum:.2f} of psum", flush=True)
    seconds = statistics.median(seconds_to_first_step() for _ in range(3))
    print(f"\n`stratagem run --workers 2` of one step: {seconds:.1f} s, start and end included")


if __name__ == "__main__":
    main()
