"""Bucket size: the time of an all-reduce of many arrays, by the size of the buckets.

States what ``collectives/packing.py`` takes for its defaults. Within one process (``--devices``) the
arrays are summed by one compiled program; ``--workers`` starts processes of one device or several each,
which do the same through shared memory or, as between machines, over XLA's connections. Rounds of all
sizes are interleaved; times are medians. On a GPU or TPU, run it there: ``--platform gpu``; the column
"alone" is then what XLA's own compiler joins.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

import stratagem as sg
from stratagem._src.collective_backends.shared_memory.ffi_collectives import use_collective_backend
from stratagem._src.collectives.all_reduce import all_reduce_each
from stratagem._src.collectives.collective_tokens import CollectiveTokens
from stratagem._src.collectives.packing import default_pack_bytes, packed, plan_packs, unpacked
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem.testing import run_cluster

KB = 1024
WORKERS = {
    "2 x 1": (2, 1, "shared memory"),
    "3 x 1": (3, 1, "shared memory"),
    "2 x 2": (2, 2, "shared memory"),
    "2 x 1 apart": (2, 1, "connections"),
}
"""Processes, devices of each, and how they exchange."""

PACK_SIZES = [0, 16 * KB, 64 * KB, 256 * KB, 1024 * KB, 4096 * KB, 16384 * KB, 65536 * KB]


class Case(NamedTuple):
    """Arrays that are reduced together."""

    name: str
    shapes: list[tuple[int, ...]]


CASES = [
    Case("100 of 16", [(16,)] * 100),
    Case("50 of 64x64 (0.8 MB)", [(64, 64)] * 50),
    Case("MLP: 4 x 256x256 (1 MB)", [(256, 256), (256,)] * 4),
    Case("10 of 512x512 (10 MB)", [(512, 512)] * 10),
    Case("8 of 1024x1024 (32 MB)", [(1024, 1024)] * 8),
]


def program(group: ReplicaGroup, pack_bytes: int) -> Callable[[list[jax.Array]], list]:
    def body(arrays):
        # As a step does: made by the replica, and used by it.
        arrays = [array * 2 for array in arrays]
        packs = plan_packs(arrays, bytes_per_pack=pack_bytes)
        order = CollectiveTokens(group)
        summed = all_reduce_each(ReduceOp.SUM, packed(arrays, packs), group, order)
        return [array * 0.25 for array in unpacked(summed, arrays, packs)]

    mapped = jax.shard_map(
        body,
        mesh=group.mesh,
        in_specs=PartitionSpec(REPLICA_AXIS),
        out_specs=PartitionSpec(REPLICA_AXIS),
        check_vma=False,
    )
    return jax.jit(mapped)


def measure(group: ReplicaGroup, where: str, rounds: int) -> list[str]:
    """Returns the lines of a table."""
    chosen = default_pack_bytes(group, shares_memory=CollectiveTokens(group).shares_memory)
    titles = ["alone", *(f"{size // KB} kB" for size in PACK_SIZES[1:])]
    lines = [
        f"{where}, ms; the default is {f'{chosen // KB} kB' if chosen else 'alone'}",
        f"{'arrays':26}" + "".join(f"{title:>10}" for title in titles),
    ]
    for case in CASES:
        arrays = [group.assemble([np.ones(s, np.float32)] * group.local_size) for s in case.shapes]
        programs = [program(group, size) for size in PACK_SIZES]
        times: list[list[float]] = [[] for _ in programs]
        for run in programs:
            jax.block_until_ready(run(arrays))
        for _ in range(rounds):
            for run, record in zip(programs, times, strict=True):
                start = time.perf_counter()
                for _ in range(3):
                    jax.block_until_ready(run(arrays))
                record.append((time.perf_counter() - start) / 3 * 1e3)
        row = "".join(f"{statistics.median(record):10.2f}" for record in times)
        lines.append(f"{case.name:26}{row}")
    return lines


def in_worker(transport: str, rounds: int) -> list[str]:
    group = sg.distribute.MultiWorkerMirroredStrategy().replica_group
    if transport == "connections":
        use_collective_backend(None)
    where = f"{group.size // group.local_size} processes of {group.local_size} CPU devices"
    return measure(group, f"{where} by {transport}", rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--workers", nargs="*", choices=WORKERS, default=list(WORKERS))
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    flags = parser.parse_args()
    if flags.platform == "cpu" and flags.devices:
        sg.config.set_num_cpu_devices(max(flags.devices))
    for count in flags.devices:
        group = ReplicaGroup.of(jax.devices(flags.platform)[:count])
        where = f"{count} {flags.platform} devices of one process"
        print(*measure(group, where, flags.rounds), sep="\n", flush=True)
    for name in flags.workers:
        count, devices, transport = WORKERS[name]
        lines, *_ = run_cluster(
            in_worker,
            workers=count,
            devices_per_worker=devices,
            args=(transport, flags.rounds),
            timeout=600,
        )
        print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
