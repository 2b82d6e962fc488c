import copy
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.core.errors import NotAnArrayError
from stratagem._src.values.per_replica import PerReplica, check_size


def placed(group, *values):
    return [jax.device_put(v, d) for v, d in zip(values, group.devices, strict=True)]


@pytest.mark.parametrize(
    ("components", "joined"),
    [
        ((1.0, 2.0), [1.0, 2.0]),
        (([1.0], [2.0]), [1.0, 2.0]),
        (([[1.0, 2.0]], [[3.0, 4.0]]), [[1.0, 2.0], [3.0, 4.0]]),
    ],
    ids=["scalars", "vectors", "matrices"],
)
def test_arrays_of_one_shape_are_one_global_array_and_back(group, components, joined):
    parts = placed(group, *(np.float32(c) for c in components))
    array = PerReplica(parts, group).global_array(group)
    np.testing.assert_array_equal(array, joined)
    again = PerReplica.from_global(group, array, scalar=parts[0].ndim == 0)
    assert again.local_shape == parts[0].shape
    for part, expected, device in zip(again.values, parts, group.devices, strict=True):
        assert part.device == device
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(
    "components",
    [
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, int)),
        ("a", "b"),
        (1.0, 2.0),
        (np.array(["a"]), np.array(["b"])),
    ],
    ids=["shapes", "dtypes", "text", "numbers", "arrays of text"],
)
def test_what_cannot_be_one_array(group, components):
    value = PerReplica(components, group)
    assert value.global_array(group) is None
    assert value.global_group is None
    assert value.values == components or all(map(np.array_equal, value.values, components))


def test_joining_is_done_once(group):
    value = PerReplica(placed(group, 1.0, 2.0), group)
    assert value.global_array(group) is value.global_array(group)


def test_known_to_differ_in_another_process(group):
    value = PerReplica(placed(group, 1.0, 2.0), group, uneven=True)
    assert value.global_array(group) is None


def test_the_replicas_are_known_from_the_devices(group):
    assert PerReplica(placed(group, 1.0, 2.0)).global_array(group) is not None
    assert PerReplica([1, 2])._group is None


def test_of_other_replicas(group, other_group):
    kept = PerReplica.from_global(group, group.assemble([np.zeros(1)] * 2), scalar=False)
    with pytest.raises(ValueError, match="with the strategy that created it"):
        check_size(kept, other_group)
    with pytest.raises(ValueError, match=r"each of the 2 replicas .* got 3"):
        PerReplica([1, 2, 3]).global_array(group)


@pytest.mark.parametrize(
    "use",
    [
        lambda v: v + 1,
        lambda v: 1 - v,
        lambda v: v == v,
        lambda v: v[0],
        operator.neg,
        bool,
        float,
        len,
        list,
        np.asarray,
        jnp.asarray,
    ],
    ids=lambda use: getattr(use, "__qualname__", "use"),
)
def test_is_not_an_array(use):
    with pytest.raises(NotAnArrayError, match=r"strategy\.reduce"):
        use(PerReplica([1.0, 2.0]))


def test_is_its_components_to_jax(group):
    value = PerReplica(placed(group, 1.0, 2.0), group)
    assert [float(leaf) for leaf in jax.tree.leaves(value)] == [1.0, 2.0]
    doubled = jax.tree.map(lambda x: 2 * x, value)
    assert isinstance(doubled, PerReplica)
    assert [float(x) for x in doubled.values] == [2.0, 4.0]


def test_staged_only_inside_of_a_program(group):
    value = PerReplica(placed(group, 1.0, 2.0), group)
    seen = []
    jax.jit(lambda: seen.append(value.staged))()
    assert seen == [True]
    assert not value.staged


def test_copies(group):
    arrays = PerReplica(placed(group, 1.0, 2.0), group)
    lists = PerReplica([[1], [2]], group)
    assert copy.copy(lists) is lists
    assert copy.deepcopy(arrays).values[0] is arrays.values[0]
    duplicate = copy.deepcopy(lists)
    duplicate.values[0].append(3)
    assert lists.values == ([1], [2])


def test_repr():
    assert repr(PerReplica([1, "a"])) == "PerReplica:{\n  0: 1,\n  1: 'a'\n}"


def test_a_format_with_a_precision_tells_the_fix():
    value = PerReplica([1.0, 2.0])
    assert f"{value}" == str(value)
    with pytest.raises(NotAnArrayError, match=r"strategy\.reduce"):
        f"{value:.3f}"
