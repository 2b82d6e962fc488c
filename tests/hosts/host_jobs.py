"""Jobs whose workers run on hosts of a topology."""

import json
import sys
import time
from pathlib import Path

SECRET = "a secret that only tests know"
STEPS = Path(__file__).with_name("steps.py")
PORT = 4711


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
