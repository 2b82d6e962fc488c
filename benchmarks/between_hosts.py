"""All-reduces between hosts, against the wire, bare ``psum``, torch and TensorFlow.

The hosts are namespaces of one machine (tests/hosts/topology.py: needs root, iproute2 and iptables), joined
by links of a given bandwidth. The wire's time is what an all-reduce takes at least: every host sends and
receives ``2 (N - 1) / N`` of the array. All run one after the other on the same hosts.
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

SIZES = {"4 kB": 2**10, "64 kB": 2**14, "1 MB": 2**18, "25 MB": 25 * 2**18, "100 MB": 100 * 2**18}
SECRET = "a secret of this benchmark alone"
PORT = 5000
LIMIT_OF_WIRE = 1.05


def measure(
    hosts: Sequence[Any],
    workers_per_host: int,
    python: str,
    script: Sequence[str],
    sizes: Any,
    rounds: int,
) -> dict[str, Any]:
    """Returns what the first of the workers prints, which run a script on all hosts."""
    addresses = [
        f"{host.address}:{PORT + number}" for host in hosts for number in range(workers_per_host)
    ]
    commands = []
    for index in range(len(addresses)):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {
            "TF_CONFIG": json.dumps(task),
            "STRATAGEM_CLUSTER_SECRET": SECRET,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        command = [python, HERE / script[0], json.dumps(sizes), rounds, *script[1:]]
        commands.append(hosts[index // workers_per_host].start(command, environment, cwd=HERE))
    for command in commands:
        if command.wait(900) != 0:
            raise SystemExit(command.output())
    found: dict[str, Any] = json.loads(commands[0].output().strip().splitlines()[-1])
    return found


def wire_milliseconds(num_bytes: int, num_hosts: int, gigabits: float) -> float:
    """Returns how long an all-reduce takes at least; NaN without a limit."""
    if not gigabits:
        return float("nan")
    return 2 * (num_hosts - 1) / num_hosts * num_bytes * 8 / (gigabits * 1e9) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="on each host")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--gigabits", type=float, nargs="+", default=[1.0, 0.0], help="0: no limit")
    parser.add_argument("--dtype", help="in which Stratagem sends, such as bfloat16")
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    parser.add_argument("--torch-python", metavar="PYTHON", help="interpreter with torch")
    flags = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    given = {"torch": flags.torch_python, "tensorflow": flags.tensorflow_python}
    peers = {name: str(Path(python).absolute()) for name, python in given.items() if python}
    sizes = {size: SIZES[size] for size in flags.sizes}
    print(
        f"{'hosts x workers':16}{'Gbit/s':>7}{'':>8}{'wire':>9}{'psum':>9}"
        + "".join(f"{name:>11}" for name in peers)
        + f"{'stratagem':>11}{'of best':>9}{'of wire':>9}"
    )
    for num_hosts in flags.hosts:
        with tempfile.TemporaryDirectory() as folder:
            topology = Topology(Path(folder), [ROOT, Path(sys.prefix), *_prefixes(peers)])
            try:
                hosts = topology.add(num_hosts)
                for gigabits in flags.gigabits:
                    for host in hosts:
                        host.limit(f"{gigabits:g}gbit" if gigabits else None)
                    for count in flags.workers:
                        compare(hosts, count, gigabits, sizes, peers, flags.rounds, flags.dtype)
            finally:
                topology.close()


def compare(
    hosts: Sequence[Any],
    workers_per_host: int,
    gigabits: float,
    sizes: dict[str, int],
    peers: dict[str, str],
    rounds: int,
    dtype: str | None,
) -> None:
    """Measures all ways on some hosts, and prints a row for each size."""

    def run(python: str, *script: str) -> dict[str, Any]:
        return measure(hosts, workers_per_host, python, script, sizes, rounds)

    ours = run(sys.executable, "between_hosts_stratagem.py", *([dtype] if dtype else []))
    of_peers = {name: run(python, f"multi_worker_{name}.py") for name, python in peers.items()}
    for size, count in sizes.items():
        wire = wire_milliseconds(4 * count, len(hosts), gigabits)
        mine, psum = ours[size]["stratagem"], ours[size]["by hand"]
        others = [times[size] for times in of_peers.values()]
        print(
            f"{f'{len(hosts)} x {workers_per_host}':16}{gigabits:7g}{size:>8}{wire:9.2f}{psum:9.2f}"
            + "".join(f"{other:11.2f}" for other in others)
            + f"{mine:11.2f}{mine / min([psum, *others]):9.2f}{mine / wire:9.2f}",
            flush=True,
        )


def _prefixes(peers: dict[str, str]) -> list[Path]:
    """Returns the folders of interpreters, which every host has to see."""
    return [Path(python).parents[1] for python in peers.values()]


if __name__ == "__main__":
    main()
