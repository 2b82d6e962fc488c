"""Endpoints and callers that are closed when a test ends."""

import pytest

from stratagem._src.transport import (
    Credentials,
    Identity,
    Message,
    TransportClient,
    TransportServer,
    connecting,
)

SECRET = "correct horse battery staple"
SERVER, CLIENT = Identity.of_task("ps", 0), Identity("coordinator")


@pytest.fixture(autouse=True)
def _crowds_are_short(monkeypatch):
    monkeypatch.setattr(connecting, "_OVERLOAD_TIMEOUT", 0.5)


@pytest.fixture
def credentials():
    return Credentials(secret=SECRET)


@pytest.fixture
def listen(credentials):
    """Starts endpoints: `listen(handlers, credentials)`."""
    started = []

    def start(handlers=None, credentials=credentials, address="127.0.0.1:0", own=SERVER):
        handlers = handlers or {"echo": lambda message: message}
        endpoint = TransportServer(address, handlers, credentials, own)
        started.append(endpoint)
        endpoint.start()
        return endpoint

    yield start
    for endpoint in started:
        endpoint.shutdown()


@pytest.fixture
def connect(credentials):
    """Makes callers to endpoints: `connect(endpoint, credentials)`."""
    made = []

    def caller(endpoint, credentials=credentials, wanted=SERVER):
        address = endpoint if isinstance(endpoint, str) else endpoint.address
        made.append(TransportClient(address, credentials, wanted=wanted, own=CLIENT))
        return made[-1]

    yield caller
    for each in made:
        each.close()


@pytest.fixture
def echo():
    """Sends a body through a caller and returns what comes back."""
    return lambda caller, body=b"hello": caller.call("echo", Message(body), timeout=10).body
