"""A server for the islands of a test."""

import pytest

from stratagem._src.control_plane.island_server.island_server import IslandServer
from stratagem._src.transport import Credentials


@pytest.fixture
def server():
    """Returns a server for two islands, which ends with the test."""
    made = IslandServer("127.0.0.1:0", 2, Credentials(), heartbeat_timeout=5.0)
    made.start()
    yield made
    made.shutdown()
