"""All-reduces between hosts, against the wire, bare ``psum``, torch and TensorFlow.

The hosts are namespaces of one machine (tests/hosts/topology.py: needs root, iproute2 and iptables), joined
by links of a given bandwidth. The wire's time is what an all-reduce takes at least: every host sends and
receives ``2 (N - 1) / N`` of the array. All run one after the other on the same hosts, and each in one
network after the other. Without a limit, and at 10 Gbit/s, the processors are the limit if they are few:
all hosts share them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from network_phases import FOLDER

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

from topology import Topology, why_not  # noqa: E402

SIZES = {"4 kB": 2**10, "64 kB": 2**14, "1 MB": 2**18, "25 MB": 25 * 2**18, "100 MB": 100 * 2**18}
MAX_SECONDS = 900
SECRET = "a secret of this benchmark alone"
PORT = 5000


class Network(NamedTuple):
    """What joins the hosts.

    Attributes:
        gigabits: Per second, of each host's link in each direction; 0 for no limit.
        round_trip: Milliseconds more between two hosts.
    """

    gigabits: float
    round_trip: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the network that a text such as ``1/5`` names."""
        gigabits, _, round_trip = text.partition("/")
        return cls(float(gigabits), float(round_trip or 0))

    def __str__(self) -> str:
        rate = f"{self.gigabits:g} Gbit/s" if self.gigabits else "no limit"
        return rate + (f", {self.round_trip:g} ms" if self.round_trip else "")

    def make(self, topology: Topology) -> None:
        """Makes it."""
        for host in topology.hosts:
            host.limit(f"{self.gigabits:g}gbit" if self.gigabits else None)
        topology.delay(self.round_trip)


def measure(
    topology: Topology,
    networks: Sequence[Network],
    workers_per_host: int,
    python: str,
    script: Sequence[str],
    sizes: Any,
    rounds: int,
) -> list[dict[str, Any]]:
    """Returns what the first of the workers prints, which run a script on all hosts, in each network."""
    hosts = topology.hosts
    addresses = [
        f"{host.address}:{PORT + number}" for host in hosts for number in range(workers_per_host)
    ]
    phases = Path(tempfile.mkdtemp(dir=topology.shared[-1]))
    commands = []
    for index in range(len(addresses)):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {
            "TF_CONFIG": json.dumps(task),
            "STRATAGEM_CLUSTER_SECRET": SECRET,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "GLOO_SOCKET_IFNAME": "eth0",
            FOLDER: str(phases),
        }
        command = [python, HERE / script[0], json.dumps(sizes), rounds, *script[1:]]
        commands.append(hosts[index // workers_per_host].start(command, environment, cwd=HERE))

    def results_of(command: Any) -> list[str]:
        return [line for line in command.output().splitlines() if line.startswith("{")]

    def wait_for(number: int) -> None:
        deadline = time.monotonic() + MAX_SECONDS
        while any(len(results_of(command)) < number for command in commands):
            failed = [command for command in commands if command.process.poll() is not None]
            if failed or time.monotonic() > deadline:
                raise SystemExit((failed or commands)[0].output())
            time.sleep(0.05)

    for number, network in enumerate(networks):
        network.make(topology)
        (phases / str(number)).touch()
        wait_for(number + 1)
    (phases / "end").touch()
    for command in commands:
        if command.wait(MAX_SECONDS) != 0:
            raise SystemExit(command.output())
    return [json.loads(line) for line in results_of(commands[0])]


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
    parser.add_argument(
        "--networks",
        type=Network.parse,
        nargs="+",
        default=[Network(1, 0), Network(10, 0), Network(0, 0), Network(1, 5)],
        help="GBITS or GBITS/MS: per second, 0 for no limit, and milliseconds of a round trip",
    )
    parser.add_argument("--dtype", help="in which Stratagem sends, such as bfloat16")
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    parser.add_argument("--torch-python", metavar="PYTHON", help="interpreter with torch")
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="run everything with real-time priority, so that other programs of the machine do not count",
    )
    flags = parser.parse_args()
    if flags.real_time:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # inherited by all that is started
    if reason := why_not():
        raise SystemExit(reason)
    given = {"torch": flags.torch_python, "tensorflow": flags.tensorflow_python}
    peers = {name: str(Path(python).absolute()) for name, python in given.items() if python}
    sizes = {size: SIZES[size] for size in flags.sizes}
    print(
        f"{'hosts x workers':16}{'network':>16}{'':>8}{'wire':>9}{'psum':>9}"
        + "".join(f"{name:>11}" for name in peers)
        + f"{'stratagem':>11}{'of best':>9}{'of wire':>9}"
    )
    for num_hosts in flags.hosts:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as shared:
            seen = [ROOT, Path(sys.prefix), *_prefixes(peers), Path(shared)]
            topology = Topology(Path(folder), seen)
            try:
                topology.add(num_hosts)
                for count in flags.workers:
                    compare(
                        topology, count, flags.networks, sizes, peers, flags.rounds, flags.dtype
                    )
            finally:
                topology.close()


def compare(
    topology: Topology,
    workers_per_host: int,
    networks: Sequence[Network],
    sizes: dict[str, int],
    peers: dict[str, str],
    rounds: int,
    dtype: str | None,
) -> None:
    """Measures all ways on some hosts, and prints a row for each network and size."""

    def run(python: str, *script: str) -> list[dict[str, Any]]:
        return measure(topology, networks, workers_per_host, python, script, sizes, rounds)

    num_hosts = len(topology.hosts)
    ours = run(sys.executable, "between_hosts_stratagem.py", *([dtype] if dtype else []))
    of_peers = [run(python, f"multi_worker_{name}.py") for name, python in peers.items()]
    for number, network in enumerate(networks):
        for size, count in sizes.items():
            wire = wire_milliseconds(4 * count, num_hosts, network.gigabits)
            mine, psum = ours[number][size]["stratagem"], ours[number][size]["by hand"]
            others = [times[number][size] for times in of_peers]
            print(
                f"{f'{num_hosts} x {workers_per_host}':16}{network!s:>16}{size:>8}{wire:9.2f}{psum:9.2f}"
                + "".join(f"{other:11.2f}" for other in others)
                + f"{mine:11.2f}{mine / min([psum, *others]):9.2f}{mine / wire:9.2f}",
                flush=True,
            )


def _prefixes(peers: dict[str, str]) -> list[Path]:
    """Returns the folders of interpreters, which every host has to see."""
    return [Path(python).parents[1] for python in peers.values()]


if __name__ == "__main__":
    main()
