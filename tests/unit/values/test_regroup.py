import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.values.regroup import is_array, map_values, regroup, select_replica


def type_name(value):
    return type(value).__name__


SAME = object()


@pytest.mark.parametrize("same", [3, 2.5, "text", b"bytes", None, SAME], ids=type_name)
def test_what_is_the_same_everywhere_is_not_wrapped(group, same):
    assert regroup(group, [{"x": same}, {"x": same}]) == {"x": same}


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2), (1, 1.0), (True, 1), ("a", "b"), (SAME, object())],
    ids=type_name,
)
def test_what_differs_is_wrapped(group, first, second):
    merged = regroup(group, [(first,), (second,)])[0]
    assert isinstance(merged, PerReplica)
    assert [type(v) for v in merged.values] == [type(first), type(second)]
    assert merged.values == (first, second)


def test_arrays_are_wrapped_also_where_they_are_equal(group):
    merged = regroup(group, [np.ones(2), np.ones(2)])
    assert isinstance(merged, PerReplica)
    assert [v.device for v in merged.values] == list(group.devices)


def test_one_array_of_all_replicas(group):
    shared = jnp.ones(2)
    assert isinstance(regroup(group, [shared, shared]), PerReplica)
    assert regroup(group, [shared, shared], unwrap_same_arrays=True) is shared
    assert isinstance(regroup(group, [shared, jnp.ones(2)], unwrap_same_arrays=True), PerReplica)


def test_one_replica_is_not_wrapped():
    one, result = ReplicaGroup.of(jax.devices("cpu")[:1]), {"x": object()}
    assert regroup(one, [result]) is result


@pytest.mark.parametrize(
    ("first", "second"),
    [((1,), (1, 2)), ({"a": 1}, {"b": 1}), ([1], (1,)), (1, None)],
    ids=type_name,
)
def test_structures_that_differ(group, first, second):
    with pytest.raises(ReplicaMismatchError, match=r"replica 0 returned .* and replica 1"):
        regroup(group, [first, second])


def test_select_is_the_inverse(group):
    results = [{"x": jnp.float32(i), "y": (f"replica {i}", "same")} for i in range(2)]
    merged = regroup(group, results)
    for index, result in enumerate(results):
        assert select_replica(index, merged) == result


def test_select_of_mirrored_values_and_others(group):
    mirrored = Mirrored(group, group.replicate(np.float32(4)))
    picked, plain = select_replica(1, (mirrored, 5))
    assert (float(picked), picked.device) == (4, group.devices[1])
    assert plain == 5


def test_values_are_leaves_of_structures(group):
    value = PerReplica([1, 2], group)
    assert map_values(lambda leaf: leaf is value, [value, {"x": 3}]) == [True, {"x": False}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (jnp.ones(1), True),
        (np.ones(1), True),
        (np.float32(1), True),
        (1.0, False),
        ([1.0], False),
        (PerReplica([1.0]), False),
    ],
    ids=lambda v: type(v).__name__,
)
def test_is_array(value, expected):
    assert is_array(value) is expected
