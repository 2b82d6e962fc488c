"""A process has one client of a cluster, for as long as somebody uses it."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from stratagem._src.parameter_server.client.parameter_client import client_for
from stratagem._src.transport import Credentials


@pytest.fixture
def addresses(servers, monkeypatch):
    monkeypatch.setattr(Credentials, "from_environment", lambda: servers.credentials)
    return [endpoint.address for endpoint in servers.endpoints]


def threads_of_clients():
    return {t for t in threading.enumerate() if t.name.startswith("parameter-client")}


def test_all_users_share_one(addresses):
    client = client_for(addresses)
    assert client_for(tuple(addresses)) is client
    assert client_for(addresses[:1]) is not client
    client.close()
    assert client_for(addresses) is not client


def test_it_ends_with_its_last_user(addresses):
    before = threads_of_clients()
    client = client_for(addresses)
    client.attach(timeout=10)
    assert threads_of_clients() - before
    client.create("v", 0, "v", (2,), np.dtype("float32"), np.zeros(2, np.float32))
    watched, callers = weakref.ref(client), list(client._clients_by_server)
    del client
    gc.collect()
    assert watched() is None
    assert all(caller._closed for caller in callers)
    deadline = time.monotonic() + 10
    while threads_of_clients() - before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not threads_of_clients() - before
