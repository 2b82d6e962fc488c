"""Islands on hosts of a topology, with the server where they meet."""

import re
import sys
import time
from pathlib import Path

from host_jobs import SECRET

PROGRESS = Path(__file__).with_name("island_progress.py")
PORT = 7000


class Islands:
    """A server on one host, and islands of one process each on others.

    Args:
        server_host: Where the server runs.
        hosts: Where islands run.
        arguments: The program of the islands and its arguments.
    """

    def __init__(self, server_host, hosts, arguments):
        self.address = f"{server_host.address}:{PORT}"
        self._server_host = server_host
        self._count = len(hosts)
        self._arguments = arguments
        self.server = self.start_server()
        self.commands = [self.start(host, number) for number, host in enumerate(hosts)]

    def start_server(self):
        """Starts the server, also again."""
        flags = ["--islands", self._count, "--address", self.address]
        command = [sys.executable, "-m", "stratagem", "island-server", *flags]
        server = self._server_host.start(command, {"STRATAGEM_ISLANDS_SECRET": SECRET})
        server.wait_for("listens on", 60)
        return server

    def start(self, host, number):
        """Starts an island, also again."""
        variables = {
            "STRATAGEM_ISLANDS_SECRET": SECRET,
            "STRATAGEM_ISLANDS_SERVER": self.address,
            "STRATAGEM_ISLANDS": str(self._count),
            "STRATAGEM_ISLAND": str(number),
        }
        return host.start([sys.executable, *self._arguments], variables)

    def finish(self, seconds):
        """Waits until all islands have ended well, with the same parameters."""
        deadline = time.monotonic() + seconds
        for command in self.commands:
            assert command.wait(max(0.1, deadline - time.monotonic())) == 0, command.output()
        ends = {re.search(r"end .*", command.output())[0] for command in self.commands}
        assert len(ends) == 1, ends


def rounds(command):
    """Returns the outer steps of an island: how many islands took part, and the seconds it waited."""
    found = re.findall(r"round (\d+) of (\d+) after ([\d.]+) s", command.output())
    return [(int(number), int(islands), float(seconds)) for number, islands, seconds in found]
