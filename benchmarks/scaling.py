"""Scaling to many workers: measurements on this machine, and a model fitted to them.

The control plane is put under load as it is, with as many simulated workers as are wanted. Training steps
of a few processes are measured, a model of step time is fitted to some of them and checked against the
others. The model then says how efficient many workers are on hardware whose makers publish its figures:
that is a prediction, and its assumptions are printed with it. ``--output`` writes JSON, tables in Markdown
and, where matplotlib is installed, a plot.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import scaling_control_plane
from scaling_control_plane import SERVERS, STEPS_AT_ONCE, Load
from scaling_model import (
    ControlPlane,
    Hardware,
    Link,
    Point,
    SharedMachine,
    Work,
    efficiency,
    fit,
    relative_errors,
    step_time,
)
from scaling_steps import measured_steps

# Seconds of a hop: NCCL's own model of itself, src/graph/tuning.cc, hwLat, rings with the Simple protocol.
NVLINK_HOP, NETWORK_HOP = 3.4e-6, 9.6e-6
# NVIDIA DGX A100 data sheet: 8 GPUs, NVLink 600 GB/s for both directions of a GPU together, 8 ports of
# 200 Gb/s HDR InfiniBand, 2 x 64 cores.
A100_NVLINK, HDR_INFINIBAND, DGX_CORES = 600e9 / 2, 200e9 / 8, 128
# IEEE 802.3ba: 100 Gb/s Ethernet.
ETHERNET = 100e9 / 8

HARDWARE = (
    Hardware(
        "DGX A100, 8 x 200 Gb/s InfiniBand",
        8,
        Link(NVLINK_HOP, A100_NVLINK),
        Link(NETWORK_HOP, HDR_INFINIBAND),
        DGX_CORES,
    ),
    Hardware(
        "8 x A100 with NVLink, one 100 Gb/s Ethernet",
        8,
        Link(NVLINK_HOP, A100_NVLINK),
        Link(NETWORK_HOP, ETHERNET / 8),
        DGX_CORES,
    ),
    Hardware(
        "1 x A100, 100 Gb/s Ethernet",
        1,
        Link(NVLINK_HOP, A100_NVLINK),
        Link(NETWORK_HOP, ETHERNET),
        DGX_CORES // 8,
    ),
)

# NVIDIA DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5: 2,470 images a second on one
# A100 80GB with batches of 256 in mixed precision. 25.6 million parameters: He et al., 2015.
# PyTorch/LanguageModeling/BERT there: 580 sequences of 128 a second with batches of 256 on one. 340 million
# parameters: Devlin et al., 2018.
WORKS = (
    Work("ResNet-50, 256 images", 256 / 2470, 4 * 25.6e6),
    Work("BERT-large, 256 sequences", 256 / 580, 4 * 340e6),
)
# The same pages: TF32, one GPU and eight. Nothing of this went into the model.
PUBLISHED = Work("ResNet-50, 256 images, TF32", 256 / 938, 4 * 25.6e6), 8, 7248 / 938 / 8

NUMBERS = (1, 2, 8, 32, 128, 512, 1024)


def control_plane_of(loads: Sequence[Load]) -> ControlPlane:
    """Returns what the largest measured membership server says of others."""
    largest = max(
        (x for x in loads if x.agreement_seconds), key=lambda x: x.num_tasks, default=None
    )
    if largest is None or largest.agreement_seconds is None:
        return ControlPlane()
    return ControlPlane(
        largest.agreement_seconds / largest.num_tasks,
        STEPS_AT_ONCE,
        largest.cores_at_rest / largest.num_tasks,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def points_table(
    machine: SharedMachine, fitted: Sequence[Point], held_back: Sequence[Point]
) -> str:
    """Returns a table of measured steps and what the model makes of them."""
    rows = []
    for points, use in ((fitted, "fitted"), (held_back, "held out")):
        for point, error in zip(points, relative_errors(machine, points), strict=True):
            rows.append(
                (
                    str(point.num_processes),
                    f"{point.num_bytes / 2**20:.2f} MB",
                    f"{1e3 * point.seconds:.2f} ms",
                    f"{1e3 * point.seconds * (1 + error):.2f} ms",
                    f"{100 * error:+.0f} %",
                    use,
                )
            )
    return table(("processes", "gradients", "measured", "model", "error", "used"), sorted(rows))


def efficiency_table(works: Sequence[Work], control: ControlPlane, numbers: Sequence[int]) -> str:
    """Returns a table of how efficient so many workers are, and where the time of the most goes."""
    rows = []
    for work in works:
        for hardware in HARDWARE:
            most = step_time(work, hardware, control, numbers[-1])
            parts = ", ".join(
                f"{name.replace('_', '-')} {100 * value / most.total:.0f} %"
                for name, value in most._asdict().items()
                if name != "compute" and value / most.total >= 0.005
            )
            found = (f"{100 * efficiency(work, hardware, control, n):.0f} %" for n in numbers)
            rows.append((work.name, hardware.name, *found, parts))
    head = "work of each", "hardware", *map("{:,}".format, numbers), f"lost with {numbers[-1]:,} to"
    return table(head, rows)


def plot(works: Sequence[Work], control: ControlPlane, path: Path) -> None:
    """Draws efficiency by the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(works), figsize=(11, 3.8), sharey=True)
    numbers = [2**exponent for exponent in range(11)]
    for axis, work in zip(axes, works, strict=True):
        for hardware in HARDWARE:
            heights = [100 * efficiency(work, hardware, control, number) for number in numbers]
            axis.plot(numbers, heights, marker="o", markersize=3, label=hardware.name)
        axis.set_xscale("log", base=2)
        axis.set_xticks(numbers, map(str, numbers))
        axis.set_title(work.name)
        axis.set_xlabel("workers")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("efficiency, %")
    axes[0].set_ylim(0, 102)
    axes[-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tasks", type=int, nargs="+", default=[64, 1024], help="simulated, at once"
    )
    parser.add_argument("--servers", nargs="*", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--processes", type=int, default=4, help="at most, that really train")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each network's steps")
    parser.add_argument(
        "--spread", type=float, default=0.02, help="of a worker's step time, where it is predicted"
    )
    parser.add_argument("--output", type=Path, help="where to write, without an ending")
    flags = parser.parse_args()
    if flags.processes < 2:
        parser.error("--processes must be at least 2, to fit a model to")

    loads = [SERVERS[server](count) for server in flags.servers for count in flags.tasks]
    page = ["## The control plane under load", "", scaling_control_plane.as_markdown(loads), ""]

    fitted, held_back, spread = measured_steps(flags.processes, flags.seconds)
    cores = os.cpu_count() or 1
    machine = fit(fitted, cores)
    errors = [abs(error) for error in relative_errors(machine, held_back)]
    bandwidth = machine.bandwidth / 1e9 if math.isfinite(machine.bandwidth) else math.inf
    page += [
        "## Steps on this machine",
        "",
        f"Fitted: {1e3 * machine.start:.2f} ms for each step, {1e6 * machine.latency:.0f} us for each "
        f"message, {1e6 * machine.turn:.0f} us more where two processes share a core, "
        f"{bandwidth:.2f} GB/s for all messages together, on {cores} cores.",
        f"The error on held-out steps is {100 * sum(errors) / len(errors):.0f} % on average "
        f"and {100 * max(errors):.0f} % at most. Steps of one process spread by {100 * spread:.0f} %.",
        "",
        points_table(machine, fitted, held_back),
        "",
    ]

    control = control_plane_of(loads)
    works = [dataclasses.replace(work, spread=flags.spread) for work in WORKS]
    published, num_published, found = PUBLISHED
    predicted = efficiency(
        dataclasses.replace(published, spread=flags.spread), HARDWARE[0], control, num_published
    )
    page += [
        "## Predicted efficiency of many workers, one accelerator each",
        "",
        "Assumed: step times of a worker spread normally by "
        f"{100 * flags.spread:g} %, nothing overlaps, links reach what their makers publish; agreement "
        f"on input and membership cost what was measured above. {published.name}, {num_published} "
        f"workers on {HARDWARE[0].name}: {100 * predicted:.0f} % predicted, {100 * found:.0f} % published.",
        "",
        efficiency_table(works, control, NUMBERS),
    ]
    text = "\n".join(page)
    print(text)
    if flags.output:
        about: dict[str, Any] = {
            "machine": f"{platform.machine()}, {cores} cores, Python {platform.python_version()}",
            "loads": [load._asdict() for load in loads],
            "fitted": [point._asdict() for point in fitted],
            "held_back": [point._asdict() for point in held_back],
            "efficiency": {
                f"{work.name}; {hardware.name}": {
                    n: efficiency(work, hardware, control, n) for n in NUMBERS
                }
                for work in works
                for hardware in HARDWARE
            },
        }
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        flags.output.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
        flags.output.with_suffix(".md").write_text(f"On {about['machine']}.\n\n{text}\n")
        try:
            plot(works, control, flags.output.with_suffix(".png"))
        except ModuleNotFoundError:
            print("no plot: matplotlib is not installed")


if __name__ == "__main__":
    main()
