"""Examples per second of whole training loops, input included, against other libraries in one run.

Six networks, on one device, on two devices of one process, and in two processes on loopback: with
Stratagem as a user writes it, with JAX as fast as one can write it by hand, and with TensorFlow's
strategies and torch's DDP where ``--tensorflow-python`` and ``--torch-python`` name interpreters that have
them (``make bench-peers`` makes both). The same global batch everywhere. ``--output`` writes JSON and a
table in Markdown, ``--plot`` a picture, which needs matplotlib.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from training_models import TASKS

from stratagem._src.cluster.reserved_ports import ReservedPorts

FOLDER = Path(__file__).parent
LAYOUTS = {"1 device": (1, 1), "2 devices": (2, 1), "2 processes": (1, 2)}
SECONDS_TO_END = 300


def rate(python: str, side: str, network: str, layout: str, seconds: float) -> float | None:
    """Returns examples per second of one side, measured in processes of its own."""
    num_devices, num_processes = LAYOUTS[layout]
    if side == "torch" and num_devices > 1:
        return None  # a process of torch has one CPU device
    script = FOLDER / f"training_{side}.py"
    request = json.dumps([network, num_devices, num_processes, seconds])
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "TF_CONFIG")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(ReservedPorts(num_processes))
        addresses = [f"127.0.0.1:{port}" for port in ports]
        processes = []
        for index in range(num_processes):
            task = {"type": "worker", "index": index}
            if num_processes > 1:
                config = {"cluster": {"worker": addresses}, "task": task}
                environment["TF_CONFIG"] = json.dumps(config)
            process = subprocess.Popen(
                [python, str(script), request],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            processes.append(process)
        outputs = [process.communicate(timeout=SECONDS_TO_END) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            sys.exit(f"{side} failed for {network}, {layout}:\n{errors}")
    measured: float = json.loads(outputs[0][0].strip().splitlines()[-1])
    return measured


def as_markdown(results: list[dict[str, Any]], sides: list[str]) -> str:
    """Returns the results as a table: examples per second, and ours against each other side."""
    others = [side for side in sides if side != "stratagem"]
    head = ["network", "layout", "stratagem", *(f"{side} (ours / it)" for side in others)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in results:
        ours = row["stratagem"]
        cells = [row["network"], row["layout"], f"{ours:,.0f}"]
        for side in others:
            it = row[side]
            cells.append("-" if it is None else f"{it:,.0f} ({ours / it:.2f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(results: list[dict[str, Any]], sides: list[str], path: Path) -> None:
    """Draws the rates of each network, by layout and side, as bars: those by hand are 1."""
    import matplotlib

    matplotlib.use("svg")
    # Text stays text, and the same figures make the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "training"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(TASKS) // 2, figsize=(12, 6.4))
    axes = axes.ravel()
    width = 0.8 / len(sides)
    for axis, network in zip(axes, TASKS, strict=True):
        rows = [row for row in results if row["network"] == network]
        for number, side in enumerate(sides):
            heights = [(row[side] or 0) / row["by_hand"] for row in rows]
            places = [index + (number - (len(sides) - 1) / 2) * width for index in range(len(rows))]
            axis.bar(places, heights, width)
        axis.set_xticks(range(len(rows)), [row["layout"] for row in rows])
        axis.set_title(network)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:: len(TASKS) // 2]:
        axis.set_ylabel("examples per second, JAX by hand = 1")
    names = [side.replace("_", " ") for side in sides]
    figure.legend(names, loc="lower center", ncols=len(sides), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each rate")
    parser.add_argument("--networks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    parser.add_argument("--torch-python", metavar="PYTHON", help="interpreter with torch")
    parser.add_argument("--output", type=Path, help="where to write, without an ending")
    parser.add_argument("--plot", type=Path, help="where to draw the rates, as SVG")
    flags = parser.parse_args()
    pythons = {"stratagem": sys.executable, "by_hand": sys.executable}
    if flags.tensorflow_python:
        pythons["tensorflow"] = flags.tensorflow_python
    if flags.torch_python:
        pythons["torch"] = flags.torch_python
    sides, results = list(pythons), []
    for network in flags.networks:
        for layout in LAYOUTS:
            row: dict[str, Any] = {"network": network, "layout": layout}
            for side, python in pythons.items():
                row[side] = rate(python, side, network, layout, flags.seconds)
            results.append(row)
            text = ", ".join(f"{side} {row[side]:,.0f}" for side in sides if row[side] is not None)
            print(f"{network}, {layout}: {text}", flush=True)
    print("\nexamples per second\n\n" + as_markdown(results, sides))
    if flags.output:
        machine = (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        about = {"machine": machine, "sides": sides, "results": results}
        flags.output.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
        page = f"Examples per second on {machine}.\n\n{as_markdown(results, sides)}\n"
        flags.output.with_suffix(".md").write_text(page)
    if flags.plot:
        plot(results, sides, flags.plot)


if __name__ == "__main__":
    main()
