"""Checkpoints of several hosts: in a directory that they share, and in one that each has for itself."""

from pathlib import Path

import pytest
from host_jobs import Job

PROGRAM = Path(__file__).with_name("saves.py")

pytestmark = pytest.mark.slow


def test_a_directory_that_all_hosts_share(hosts, topology):
    job = Job(hosts(2), [PROGRAM, topology.shared[0]])
    job.finish()


def test_a_directory_that_each_host_has_for_itself_is_refused_by_the_first_save(hosts):
    job = Job(hosts(2), [PROGRAM, "/tmp/saved"])  # each host has its own /tmp
    for command in job.commands:
        assert command.wait(90) == 1, command.output()
        assert "Workers must save to a directory that all of them share" in command.output()
        assert "restored" not in command.output()
