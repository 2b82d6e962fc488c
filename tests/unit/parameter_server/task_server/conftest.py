"""No credentials in the environment, and servers that are shut down when a test ends."""

import pytest

import stratagem as sg


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch):
    for variable in ("CLUSTER_SECRET", "CLUSTER_SECRET_FILE", "TLS_AUTHORITY", "TLS_KEY"):
        monkeypatch.delenv(f"STRATAGEM_{variable}", raising=False)


@pytest.fixture
def serve():
    """Creates servers: `serve(...)` as `sg.distribute.Server(...)`."""
    made = []

    def create(*args, **kwargs):
        made.append(sg.distribute.Server(*args, **kwargs))
        return made[-1]

    yield create
    for server in made:
        server.shutdown()
