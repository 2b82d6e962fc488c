"""Endpoints and channels that are closed when a test ends."""

import pytest

from stratagem._src.transport import Channel, Credentials, Endpoint, Identity, Message

SECRET = "correct horse battery staple"
SERVER, CLIENT = Identity.of_task("ps", 0), Identity("coordinator")


@pytest.fixture
def credentials():
    return Credentials(secret=SECRET)


@pytest.fixture
def listen(credentials):
    """Starts endpoints: `listen(handlers, credentials)`."""
    started = []

    def start(handlers=None, credentials=credentials, address="127.0.0.1:0", own=SERVER):
        handlers = handlers or {"echo": lambda message: message}
        endpoint = Endpoint(address, handlers, credentials, own)
        started.append(endpoint)
        endpoint.start()
        return endpoint

    yield start
    for endpoint in started:
        endpoint.shutdown()


@pytest.fixture
def connect(credentials):
    """Makes channels to endpoints: `connect(endpoint, credentials)`."""
    made = []

    def channel(endpoint, credentials=credentials, wanted=SERVER):
        address = endpoint if isinstance(endpoint, str) else endpoint.address
        made.append(Channel(address, credentials, wanted=wanted, own=CLIENT))
        return made[-1]

    yield channel
    for each in made:
        each.close()


@pytest.fixture
def echo():
    """Sends a body through a channel and returns what comes back."""
    return lambda channel, body=b"hello": channel.call("echo", Message(body), timeout=10).body
