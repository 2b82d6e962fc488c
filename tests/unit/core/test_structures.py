"""Objects that JAX takes for leaves, opened and made again."""

import collections
import dataclasses
import gc
import types
import weakref

import jax
import numpy as np
import pytest

from stratagem._src.core import structures


class Settings(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Counted(collections.defaultdict):
    pass


@dataclasses.dataclass
class Point:
    x: object
    y: object = dataclasses.field(default=0.0, init=False)


def test_leaves_are_found_and_objects_made_again():
    tree = (Settings(b=1.0, a=[2.0, Settings(c=3.0)]), types.MappingProxyType({"z": 4.0}))
    leaves, structure = structures.flatten(tree)
    assert leaves == [2.0, 3.0, 1.0, 4.0]
    made = jax.tree.unflatten(structure, [x * 10 for x in leaves])
    assert made == (Settings(b=10.0, a=[20.0, Settings(c=30.0)]), {"z": 40.0})
    assert [type(part) for part in made] == [Settings, types.MappingProxyType]
    assert made[0].b == 10.0
    assert list(made[0]) == ["b", "a"]


def test_forms_tell_whether_objects_were_opened():
    assert structures.has_containers(structures.flatten([1, {"a": Settings(b=2)}])[1])
    assert not structures.has_containers(structures.flatten([1, {"a": (2, None)}])[1])


def test_the_order_of_keys_does_not_tell_mappings_apart():
    one, other = structures.flatten(Settings(a=1, b=2)), structures.flatten(Settings(b=2, a=1))
    assert one == other
    assert hash(one[1]) == hash(other[1])
    assert structures.flatten(Settings(a=1))[1] != structures.flatten(Settings(b=1))[1]
    assert structures.flatten(Settings(a=1))[1] != structures.flatten({"a": 1})[1]


def test_keys_that_cannot_be_sorted():
    leaves, structure = structures.flatten(Settings({1: "one", "a": "letter"}))
    assert jax.tree.unflatten(structure, leaves) == {1: "one", "a": "letter"}


def test_a_default_factory_is_kept():
    made = structures.map_structure(lambda x: x + 1, Counted(list, a=1))
    assert type(made) is Counted
    assert made["new"] == []


def test_fields_without_a_value_and_outside_of_init():
    made = structures.map_structure(lambda x: x + 1, Point(np.ones(2)))
    np.testing.assert_array_equal(made.x, [2.0, 2.0])
    assert made.y == 1.0


def test_a_dataclass_is_opened_for_what_is_handed_out():
    configuration = Point(Settings(rate=0.1))
    assert structures.leaves_of(configuration) == [configuration]
    assert len(structures.leaves_of(Point(Point(Settings(weights=np.ones(2)))))) == 3


def test_registered_classes_are_left_to_jax():
    @jax.tree_util.register_static
    @dataclasses.dataclass(frozen=True)
    class Registered:
        x: object

    leaves, structure = structures.flatten([Registered(1), Settings(a=2)])
    assert leaves == [2]
    assert jax.tree.unflatten(structure, leaves) == [Registered(1), {"a": 2}]


def test_jax_is_not_told_of_users_classes():
    structures.flatten(Settings(a=1))
    assert jax.tree.leaves(Settings(a=1)) == [{"a": 1}]


def test_classes_are_not_kept():
    class Local(dict):
        pass

    assert structures.leaves_of([Local(a=1)]) == [1]
    reference = weakref.ref(Local)
    del Local
    gc.collect()
    assert reference() is None


def test_a_mapping_that_cannot_be_made_again():
    class Strict(dict):
        def __init__(self, first, second):
            super().__init__(first=first, second=second)

    with pytest.raises(TypeError, match="constructible from a dict of its items"):
        structures.map_structure(lambda x: x, Strict(1, 2))
