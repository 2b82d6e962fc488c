"""Jobs whose workers run on hosts of a topology."""

import json
import sys
import time
from pathlib import Path

SECRET = "a secret that only tests know"
STEPS = Path(__file__).with_name("steps.py")
PORT = 4711


DEBIAN = "127.0.0.1 localhost\n127.0.1.1 {own}\n::1 localhost ip6-localhost\n{others}\n"
LOOPBACK = {"127.0.0.1", "127.0.1.1", "::1"}


def write_hosts_of_debian(hosts):
    """Gives hosts the ``/etc/hosts`` of Debian and Ubuntu, where the own name is 127.0.1.1."""
    for own in hosts:
        others = "\n".join(f"{host.address} {host.name}" for host in hosts if host is not own)
        own.write_hosts(DEBIAN.format(own=own.name, others=others))


def listening(host):
    """Returns where processes of a host listen, as addresses without ports; ``*`` is everywhere."""
    done = host.start(["ss", "-Hltn"])
    assert done.wait(10) == 0
    return {line.split()[3].rpartition(":")[0].strip("[]") for line in done.output().splitlines()}


class Job:
    """Workers of one job by TF_CONFIG.

    Args:
        hosts: Where they run, in the order of their tasks; some may be on the same host.
        arguments: The program and its arguments.
        addresses: The host of each in the cluster; default their names.
        env: More variables.
    """

    def __init__(self, hosts, arguments, addresses=None, env=None):
        names = addresses or [host.name for host in hosts]
        self.addresses = [
            f"{name}:{PORT + names[:number].count(name)}" for number, name in enumerate(names)
        ]
        self._command = [sys.executable, *arguments]
        self._env = env or {}
        self.commands = [self.start(host, index) for index, host in enumerate(hosts)]

    def start(self, host, index):
        """Starts one worker on a host, also in the place of one that was lost."""
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": self.addresses}, "task": task}
        variables = {"TF_CONFIG": json.dumps(config), "STRATAGEM_CLUSTER_SECRET": SECRET}
        return host.start(self._command, variables | self._env)

    def wait_for(self, text, seconds=90.0):
        """Waits until all workers have written some text."""
        deadline = time.monotonic() + seconds
        for command in self.commands:
            command.wait_for(text, deadline - time.monotonic())

    def finish(self, seconds=90.0):
        """Waits until all workers have ended well."""
        deadline = time.monotonic() + seconds
        for command in self.commands:
            code = command.wait(max(0.1, deadline - time.monotonic()))
            assert code == 0, command.output()
