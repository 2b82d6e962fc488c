"""Islands on hosts with a slow link between them."""

import re
import sys
from pathlib import Path

import pytest
from host_jobs import SECRET, Job
from island_hosts import PORT, PROGRESS, Islands

STEPS = Path(__file__).with_name("island_steps.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def step_ms(command):
    return float(re.search(r"step_ms ([\d.]+)", command.output())[1])


def test_islands_on_a_slow_link(hosts):
    both = hosts(2)
    for host in both:
        host.limit("50mbit")
    synchronous = Job(both, [STEPS, 5, 1])
    synchronous.finish(120)
    islands = Islands(both[0], both, [STEPS, 41, 20]).commands
    for island in islands:
        assert island.wait(120) == 0, island.output()
        assert "islands 2 rounds 3" in island.output()
    print("synchronous", step_ms(synchronous.commands[0]), "islands", step_ms(islands[1]))
    assert step_ms(islands[1]) < step_ms(synchronous.commands[0]) / 4


def test_two_islands_of_two_hosts_each(hosts):
    """By the launcher, as on bare hosts: each island is a job of two nodes, with its own rendezvous."""
    four = hosts(4)
    address = f"{four[0].address}:{PORT}"
    secrets = {"STRATAGEM_ISLANDS_SECRET": SECRET, "STRATAGEM_CLUSTER_SECRET": SECRET}
    stratagem = [sys.executable, "-m", "stratagem"]
    server = four[0].start(
        [*stratagem, "island-server", "--islands", 2, "--address", address], secrets
    )
    server.wait_for("listens on", 60)
    launchers = []
    for number, host in enumerate(four):
        island, rank = divmod(number, 2)
        flags = ["--islands", 2, "--island", island, "--island-server", address]
        endpoint = f"{four[2 * island].address}:29400"
        flags += ["--nnodes", 2, "--node-rank", rank, "--rdzv-endpoint", endpoint]
        launchers.append(host.start([*stratagem, "run", *flags, PROGRESS, 20, 5, 0, 60], secrets))
    ends = set()
    for launcher in launchers:
        assert launcher.wait(120) == 0, launcher.output()
        ends.update(re.findall(r"round 4 of 2|end 20 w [\d.]+", launcher.output()))
    # In each step workers add 1 and 2 on island 0, 2 and 4 on island 1: 1.5 and 3 by their means.
    assert ends == {"round 4 of 2", "end 20 w 45.0000"}
