"""A node that node 0 does not answer."""

import functools
import io

import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher import rendezvous_client
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_client import RendezvousClient
from stratagem._src.transport import Credentials


def test_it_says_for_whom_it_waits_though_another_speaks_for_the_job(monkeypatch):
    at_once = functools.partial(WaitingNotice, first_seconds=0.0)
    monkeypatch.setattr(rendezvous_client, "WaitingNotice", at_once)
    errors = io.StringIO()
    console = Console(io.StringIO(), errors, speaks=False)
    with ReservedPorts(1) as [port]:
        endpoint = Address("127.0.0.1", port)
        names = ("worker 0", "worker 1")
        rendezvous = Rendezvous(endpoint, 2, 1, 0.5, Credentials("0123456789" * 4), names)
        with (
            EventLoop() as loop,
            pytest.raises(RendezvousError, match=r"Worker 1 waited 0.5 s for worker 0 at 127"),
        ):
            RendezvousClient(loop, rendezvous, JobRules(), console)
    [line] = errors.getvalue().splitlines()
    assert line.startswith(f"stratagem: worker 1, 0 s: waiting for worker 0 at {endpoint}: ")
