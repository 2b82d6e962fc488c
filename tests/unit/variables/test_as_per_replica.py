import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.as_per_replica import is_per_replica, per_replica_of

ON_READ = sg.VariableSynchronization.ON_READ


@pytest.mark.parametrize("options", [{}, {"synchronization": ON_READ}], ids=["ON_WRITE", "ON_READ"])
def test_copies_of_a_variable(mirrored, group, options):
    value = per_replica_of(mirrored(3.0, **options))
    assert is_per_replica(value)
    assert [(float(part), part.device) for part in value.values] == [
        (3.0, device) for device in group.devices
    ]


def test_a_value_in_one_place_is_the_value(central):
    for variable in (central(3.0), sg.Variable(3.0)):
        value = per_replica_of(variable)
        assert isinstance(value, jax.Array)
        assert float(value) == 3


def test_mirrored_values(group):
    value = per_replica_of(Mirrored(group, group.replicate(np.float32(2))))
    assert [float(part) for part in value.values] == [2, 2]
    one = ReplicaGroup.of(jax.devices("cpu")[:1])
    assert not is_per_replica(per_replica_of(Mirrored(one, jnp.float32(2))))


@pytest.mark.parametrize("value", [1, None, "text", PerReplica([1, 2])], ids=repr)
def test_anything_else_is_itself(value):
    assert per_replica_of(value) is value


def test_slices_differ_as_their_values_do():
    assert is_per_replica(IndexedSlices(PerReplica([1, 2]), PerReplica([0, 1])))
    assert not is_per_replica(IndexedSlices(jnp.ones(1), jnp.zeros(1, int)))
