import jax
import pytest

import stratagem as sg
from stratagem._src.mesh.replica_group import ReplicaGroup


@pytest.fixture
def group():
    """Two replicas."""
    return ReplicaGroup.of(jax.devices("cpu")[:2])


@pytest.fixture
def mirrored():
    """Makes variables with copies on two devices."""
    return _maker(sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))


@pytest.fixture
def central():
    """Makes variables on a device that is none of the two replicas'."""
    return _maker(sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:3"))


def _maker(strategy):
    def make(*args, **options):
        with strategy.scope():
            return sg.Variable(*args, **options)

    return make
