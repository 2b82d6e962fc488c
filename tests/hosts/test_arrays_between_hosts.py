"""Arrays of workers on several hosts: right numbers, the same bits everywhere."""

from pathlib import Path

import pytest
from host_jobs import Job

COLLECTIVES = Path(__file__).with_name("collectives.py")


def lines_of(job, word):
    """Returns what each worker wrote after a word at the start of a line."""
    job.finish(180.0)
    found = []
    for command in job.commands:
        [line] = [line for line in command.output().splitlines() if line.startswith(f"{word} ")]
        found.append(line.removeprefix(f"{word} "))
    return found


def check(job, exchange):
    assert set(lines_of(job, "exchange")) == {exchange}
    assert len(set(lines_of(job, "results"))) == 1


def test_collectives_between_hosts_with_one_and_two_workers(hosts):
    first, second = hosts(2)
    check(Job([first, second, second], [COLLECTIVES, 5]), "MultiHostBackend")


@pytest.mark.slow
@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 2, 0, 1, 2]])
def test_other_layouts(hosts, order):
    made = hosts(max(order) + 1)
    check(Job([made[number] for number in order], [COLLECTIVES, 3]), "MultiHostBackend")


@pytest.mark.slow
def test_encrypted(hosts):
    job = Job(hosts(2), [COLLECTIVES, 3], env={"STRATAGEM_ENCRYPT_ARRAYS": "1"})
    check(job, "MultiHostBackend")


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, {"STRATAGEM_ENCRYPT_ARRAYS": "1"}])
def test_over_a_slow_network(hosts, topology, env):
    made = hosts(3)
    for host in made:
        host.limit("1gbit")
    topology.delay(5)
    check(Job(made, [COLLECTIVES, 2], env=env), "MultiHostBackend")
