"""Launchers that hear nothing of each other, over real sockets."""

import io
import threading
import time

import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.launcher import rendezvous_client, rendezvous_server
from stratagem._src.launcher.cluster_plan import NodeOffer
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.events import Finish, NodeJoined, NodeStopped, Stop
from stratagem._src.launcher.job_dispatcher import JobDispatcher
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobPhase, JobState
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_client import RendezvousClient
from stratagem._src.launcher.rendezvous_server import RendezvousServer
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.transport import Credentials

TIMEOUT = 1.0


class Pair:
    """The rendezvous of node 0, whose loop has a thread, and node 1, whose loop has none."""

    def __init__(self, port):
        endpoint = Address("127.0.0.1", port)
        nodes = [Rendezvous(endpoint, 2, i, 20.0, Credentials("0123456789" * 4)) for i in (0, 1)]
        self.state = JobState(num_nodes=2, rules=JobRules())
        self._loop, self.loop = EventLoop(), EventLoop()
        self.server = RendezvousServer(self._loop, nodes[0], JobDispatcher(self.state))
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.errors = io.StringIO()
        console = Console(io.StringIO(), self.errors)
        self.client = RendezvousClient(self.loop, nodes[1], JobRules(), console)
        self.orders = []
        self.client.obey_with(self.orders.append)

    def _run(self):
        while not self._is_over:
            self._loop.call_at(time.monotonic() + 0.05, lambda: None)
            self._loop.run_once()

    def report_of_both(self):
        for node in (0, 1):
            offer = NodeOffer(node, "127.0.0.1", TaskCounts(workers=1), (7000 + node,))
            self._loop.call_soon(
                lambda offer=offer: self.server._dispatcher.report(NodeJoined(offer))
            )

    def run_client(self, seconds):
        """Runs the loop of node 1 for so long, or until it is ordered to finish."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.orders and isinstance(self.orders[-1], Finish):
                return
            self.loop.call_at(time.monotonic() + 0.05, lambda: None)
            self.loop.run_once()

    def close(self):
        self.client.close()
        self.server.close()
        self._is_over = True
        self._thread.join()
        for loop in (self._loop, self.loop):
            loop.__exit__()


@pytest.fixture
def pair(monkeypatch):
    def make(server_beats, client_beats):
        for module, beats in (
            (rendezvous_server, server_beats),
            (rendezvous_client, client_beats),
        ):
            monkeypatch.setattr(module, "HEARTBEAT_TIMEOUT", TIMEOUT)
            monkeypatch.setattr(module, "HEARTBEAT_SECONDS", TIMEOUT / 10 if beats else 60.0)
        made.append(Pair(*held))
        return made[0]

    made = []
    with ReservedPorts(1) as held:
        yield make
        for each in made:
            each.close()


def poll(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_launchers_that_send_heartbeats_stay_together(pair):
    both = pair(server_beats=True, client_beats=True)
    both.run_client(3 * TIMEOUT)
    assert both.server.lost_nodes == []
    assert both.orders == []


def test_a_node_that_sends_none_is_lost(pair):
    both = pair(server_beats=True, client_beats=False)
    both.report_of_both()
    poll(lambda: both.state.phase is JobPhase.STOPPING)
    assert both.server.lost_nodes == [1]


def test_a_node_0_that_sends_none_is_lost_and_named(pair):
    both = pair(server_beats=False, client_beats=True)
    deadline = time.monotonic() + 20.0
    while not both.orders and time.monotonic() < deadline:
        both.run_client(0.2)
    assert isinstance(both.orders[0], Stop)
    both.client.report(NodeStopped(1))
    assert both.orders[-1].exit_code == 1
    assert "has sent no heartbeat for 1 s" in both.orders[-1].message
    assert "stopping the tasks of this node" in both.errors.getvalue()
