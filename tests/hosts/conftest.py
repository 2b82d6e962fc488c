"""Hosts for the tests of this folder, and jobs on them; left out with a word where there can be none."""

import os
import sys
from pathlib import Path

import pytest
from topology import Topology, why_not

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SECONDS = 600
"""Of a test: its own waits, each with its deadline, add up to more than other tests may take."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session", autouse=True)
def _can_be_made():
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _without_clusters(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("STRATAGEM_", "SLURM_", "OMPI_", "TF_CONFIG")):
            monkeypatch.delenv(name)


@pytest.fixture
def topology(tmp_path):
    """Returns a network without hosts, which ends with the test."""
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    private.mkdir()
    interpreter = Path(sys.prefix)
    made = Topology(private, [shared, ROOT, interpreter])
    yield made
    made.close()


@pytest.fixture
def hosts(topology):
    """Adds hosts and returns them."""
    return topology.add
