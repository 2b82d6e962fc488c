import jax
import pytest

from stratagem._src.mesh.replica_group import ReplicaGroup


@pytest.fixture
def group():
    """Two replicas."""
    return ReplicaGroup.of(jax.devices("cpu")[:2])


@pytest.fixture
def other_group():
    """Two replicas on other devices."""
    return ReplicaGroup.of(jax.devices("cpu")[2:4])
