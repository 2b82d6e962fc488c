"""Firewalls between hosts: which ports a job needs, and errors that name who cannot reach whom."""

import time

import pytest
from host_jobs import STEPS, Job

CONNECT_SECONDS = 30.0  # docs/networking.md
CUT_SECONDS = 13.0  # likewise
SLACK_SECONDS = 15.0

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("action", ["DROP", "REJECT"])
def test_two_workers_that_cannot_reach_each_other_are_named(hosts, action):
    three = hosts(3)
    three[1].firewall("INPUT", "-s", three[2].address, "-j", action)
    three[2].firewall("INPUT", "-s", three[1].address, "-j", action)
    job = Job(three, [STEPS, 3, 0])
    job.commands[2].wait_for("worker 2 (host3:4711) tries to connect to worker 1", 60)
    noticed = time.monotonic()
    for command in job.commands:
        left = noticed + CONNECT_SECONDS + SLACK_SECONDS - time.monotonic()
        assert command.wait(left) == 3, command.output()
        assert "worker 2 (host3:4711) cannot connect to worker 1 (host2:4711)" in command.output()


def test_the_ports_that_the_documentation_names_are_enough(hosts):
    both = hosts(2)
    for host in both:
        host.firewall("INPUT", "-i", "eth0", "-j", "DROP")
        # The leader's port of the cluster, and those that the system chooses.
        for ports in ("4711", "32768:60999"):
            rule = ("-i", "eth0", "-p", "tcp", "--dport", ports, "-j", "ACCEPT")
            host.firewall("INPUT", *rule)
        replies = ("-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
        host.firewall("INPUT", *replies)
    job = Job(both, [STEPS, 3, 0])
    job.finish()
    assert all("step 2 sum 3.0" in command.output() for command in job.commands)


def test_a_partition_between_two_workers_that_the_leader_reaches(hosts):
    three = hosts(3)
    job = Job(three, [STEPS, 10000, 0.1])
    job.wait_for("step 3 ")
    three[1].cut(peer=three[2])
    deadline = time.monotonic() + CUT_SECONDS + SLACK_SECONDS
    for command in job.commands:
        assert command.wait(deadline - time.monotonic()) == 4, command.output()
        lost = command.output().partition("lost after")[2]
        assert "worker 1 (host2:4711)" in lost
        assert "worker 2 (host3:4711)" in lost
