"""Training on two hosts with a slow link: islands, synchronous steps and torch; time, bytes and loss.

The hosts are namespaces of one machine (tests/hosts/topology.py: needs root, iproute2 and iptables), joined
by links of a given bandwidth. All train the same network with the same batches one after the other. Bytes
are those that the second host sent, as its interface counted them, headers included. Losses tell whether
two ways that average alike have trained alike; they say nothing of rows with other numbers of steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

from topology import Topology, why_not  # noqa: E402

SECRET = "a secret of this benchmark alone"
PORT = 5000


def measure(hosts: Sequence[Any], command: Sequence[Any], as_islands: bool) -> dict[str, Any]:
    """Returns what the second of two processes prints, which run a command on two hosts.

    The server of islands is on the first: the second host has nothing but its island.
    """
    addresses = [f"{host.address}:{PORT}" for host in hosts]
    server = None
    if as_islands:
        flags = ["--islands", len(hosts), "--address", addresses[0]]
        serve = [sys.executable, "-m", "stratagem", "island-server", *flags]
        server = hosts[0].start(serve, {"STRATAGEM_ISLANDS_SECRET": SECRET})
        server.wait_for("listens on", 60)
    commands = []
    for index, host in enumerate(hosts):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        cluster = {"TF_CONFIG": json.dumps(task), "STRATAGEM_CLUSTER_SECRET": SECRET}
        island = {
            "STRATAGEM_ISLANDS_SECRET": SECRET,
            "STRATAGEM_ISLANDS_SERVER": addresses[0],
            "STRATAGEM_ISLANDS": str(len(hosts)),
            "STRATAGEM_ISLAND": str(index),
        }
        variables = {**(island if as_islands else cluster), "GLOO_SOCKET_IFNAME": "eth0"}
        variables["OMP_NUM_THREADS"] = "1"
        commands.append(host.start(command, variables, cwd=HERE))
    for one in commands:
        if one.wait(600) != 0:
            raise SystemExit(one.output())
    if server is not None:
        server.process.terminate()
        for pid in hosts[0].processes():
            hosts[0].signal(pid, 15)
        server.wait(30)
    found: dict[str, Any] = json.loads(commands[1].output().strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabits", type=float, default=50.0, help="of each host's link")
    parser.add_argument("--steps", type=int, default=100, help="of islands; a tenth in sync")
    parser.add_argument("--sync-every", type=int, default=20, metavar="H")
    parser.add_argument("--width", type=int, default=512, help="of the hidden layers")
    parser.add_argument("--rows", type=int, default=1024, help="of a host's batch")
    parser.add_argument("--torch-python", metavar="PYTHON", help="interpreter with torch")
    flags = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    shared = [ROOT, Path(sys.prefix)]
    ours = [sys.executable, HERE / "islands_stratagem.py", flags.width, flags.rows]
    every, few, many = flags.sync_every, max(flags.steps // 10, 2), flags.steps
    ways = {
        "stratagem, in sync": ([*ours, few, 0, 0], False),
        f"stratagem, islands, H={every}": ([*ours, many, every, 0], True),
        f"stratagem, islands, H={every}, overlapped": ([*ours, many, every, every], True),
    }
    if flags.torch_python:
        python = Path(flags.torch_python).absolute()
        shared.append(python.parents[1])
        torch = [python, HERE / "islands_torch.py", flags.width, flags.rows]
        ways["torch, DistributedDataParallel"] = ([*torch, few, 0], False)
        ways[f"torch, averaged every {every} steps"] = ([*torch, many, every], False)
    print(f"{'':44}{'ms a step':>11}{'MB a step':>11}{'loss':>9}")
    with tempfile.TemporaryDirectory() as folder:
        topology = Topology(Path(folder), shared)
        try:
            hosts = topology.add(2)
            for host in hosts:
                host.limit(f"{flags.megabits:g}mbit")
            for name, (command, as_islands) in ways.items():
                found = measure(hosts, command, as_islands)
                print(
                    f"{name:44}{found['step_ms']:11.1f}{found['bytes'] / 1e6:11.3f}{found['loss']:9.4f}",
                    flush=True,
                )
        finally:
            topology.close()


if __name__ == "__main__":
    main()
