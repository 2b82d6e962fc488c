"""Islands on hosts with a slow link between them."""

import re
import sys
from pathlib import Path

import pytest
from host_jobs import SECRET, Job

STEPS = Path(__file__).with_name("island_steps.py")
PORT = 7000
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def step_ms(command):
    return float(re.search(r"step_ms ([\d.]+)", command.output())[1])


def test_islands_on_a_slow_link(hosts):
    both = hosts(2)
    for host in both:
        host.limit("50mbit")
    synchronous = Job(both, [STEPS, 5, 1])
    synchronous.finish(120)
    secret = {"STRATAGEM_ISLANDS_SECRET": SECRET}
    address = f"{both[0].address}:{PORT}"
    flags = ["--islands", 2, "--address", address]
    server = both[0].start([sys.executable, "-m", "stratagem", "island-server", *flags], secret)
    server.wait_for("listens at", 60)
    islands = []
    for number, host in enumerate(both):
        variables = {
            "STRATAGEM_ISLANDS_SERVER": address,
            "STRATAGEM_ISLANDS": "2",
            "STRATAGEM_ISLAND": str(number),
        }
        islands.append(host.start([sys.executable, STEPS, 41, 20], secret | variables))
    for island in islands:
        assert island.wait(120) == 0, island.output()
        assert "islands 2 rounds 3" in island.output()
    print("synchronous", step_ms(synchronous.commands[0]), "islands", step_ms(islands[1]))
    assert step_ms(islands[1]) < step_ms(synchronous.commands[0]) / 4
