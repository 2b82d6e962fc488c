"""Islands on hosts: partitions of 2 s, 30 s and for ever, and a server that is killed."""

import re
import signal
import time

import pytest
from island_hosts import PROGRESS, Islands, rounds
from topology import poll

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HEARTBEAT_TIMEOUT = 10.0  # which docs/islands.md promises
SLACK_SECONDS = 5.0  # for a machine that is busy with several hosts
TIMEOUT = 20.0  # timeout_seconds of these islands
# As many steps as two minutes have: tests end islands before.
ENDLESS = [PROGRESS, 1200, 5, 0.1, TIMEOUT]


def begin(hosts, arguments):
    """Starts the server on a host of its own and an island on each of two others."""
    server_host, *others = hosts(3)
    islands = Islands(server_host, others, arguments)
    for command in islands.commands:
        command.wait_for("round 2 of 2", 90)
    return server_host, others, islands


def test_a_short_partition_is_waited_for(hosts):
    _, (_, host), islands = begin(hosts, [PROGRESS, 60, 5, 0.1, TIMEOUT])
    host.cut()
    time.sleep(2)  # what is tested
    host.heal()
    islands.finish(60)
    for command in islands.commands:
        assert {number for _, number, _ in rounds(command)} == {2}
        assert len(rounds(command)) == 12  # nobody has missed one


def test_an_island_that_is_cut_off_for_30_seconds_returns(hosts):
    _, (_, host), islands = begin(hosts, [PROGRESS, 500, 5, 0.1, TIMEOUT + 30])
    first, second = islands.commands
    cut = time.monotonic()
    host.cut()
    poll(lambda: rounds(first)[-1][1] == 1, HEARTBEAT_TIMEOUT + SLACK_SECONDS + 1)
    assert max(seconds for *_, seconds in rounds(first)) < HEARTBEAT_TIMEOUT + SLACK_SECONDS
    alone = rounds(first)[-1][0]
    time.sleep(max(0.0, cut + 30 - time.monotonic()))  # what is tested
    host.heal()
    poll(lambda: rounds(first)[-1][1] == 2 and rounds(second)[-1][1] == 2, 30)
    # It has gone on where the first was, and has not made the rounds between.
    missing = [number for number, *_ in rounds(second) if number == alone + 1]
    assert not missing
    islands.finish(90)


@pytest.mark.parametrize("direction", ["inbound", "outbound", "both"])
def test_an_island_that_is_cut_off_for_ever(hosts, direction):
    _, (_, host), islands = begin(hosts, ENDLESS)
    first, second = islands.commands
    host.cut(inbound=direction != "outbound", outbound=direction != "inbound")
    poll(lambda: rounds(first)[-1][1] == 1, HEARTBEAT_TIMEOUT + SLACK_SECONDS + 1)
    # It looks for the server for timeout_seconds after it has lost it, and then says so.
    assert second.wait(HEARTBEAT_TIMEOUT + TIMEOUT + HEARTBEAT_TIMEOUT + SLACK_SECONDS) == 4
    found = re.search(r"gave up after ([\d.]+) s: (.*)", second.output())
    assert float(found[1]) < TIMEOUT + 2 * HEARTBEAT_TIMEOUT + SLACK_SECONDS
    assert f"could not reach the island server for {TIMEOUT:g} s" in found[2]
    assert rounds(first)[-1][1] == 1
    assert first.process.poll() is None


def test_a_server_that_is_killed_and_started_again(hosts):
    server_host, _, islands = begin(hosts, [PROGRESS, 100, 5, 0.1, TIMEOUT])
    for pid in server_host.processes():
        if "island-server" in server_host.command_of(pid):
            server_host.signal(pid, signal.SIGKILL)
    islands.server.wait(10)
    time.sleep(3)  # so that islands come to an outer step without it
    islands.start_server()
    islands.finish(60)
    for command in islands.commands:
        assert rounds(command)[-1][:2] == (20, 2)
        assert {number for _, number, _ in rounds(command)} == {2}


def test_a_server_that_is_lost_for_ever(hosts):
    server_host, _, islands = begin(hosts, ENDLESS)
    crashed = time.monotonic()
    server_host.crash()
    for command in islands.commands:
        left = crashed + 2 * HEARTBEAT_TIMEOUT + TIMEOUT + SLACK_SECONDS - time.monotonic()
        assert command.wait(left) == 4, command.output()
        assert "could not reach the island server" in command.output()


def test_an_island_whose_host_loses_power_and_boots(hosts):
    _, (_, host), islands = begin(hosts, [PROGRESS, 400, 5, 0.1, TIMEOUT])
    first = islands.commands[0]
    host.crash()
    poll(lambda: rounds(first)[-1][1] == 1, HEARTBEAT_TIMEOUT + SLACK_SECONDS + 1)
    host.boot()
    islands.commands[1] = again = islands.start(host, 1)
    again.wait_for("joined at step", 60)
    joined = int(re.search(r"joined at step (\d+)", again.output())[1])
    assert joined > 0
    assert joined % 5 == 0
    islands.finish(90)
    assert rounds(again)[-1][1] == 2
