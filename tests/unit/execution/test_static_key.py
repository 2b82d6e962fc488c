"""Arguments that are not arrays: which calls share a program."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import math
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.execution.static_key import static_key


class Seconds(float):
    def __repr__(self):
        return f"{float(self):.1f}s"


class Close(float):
    def __eq__(self, other):
        return abs(float(self) - float(other)) < 1

    def __hash__(self):
        return 0


class Tagged(str):
    def __new__(cls, text, tag):
        made = super().__new__(cls, text)
        made.tag = tag
        return made


class Slotted(int):
    __slots__ = ()


class Row(tuple):
    __slots__ = ()


class Level(enum.IntEnum):
    LOW = 1


class Other(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    LOW = "low"


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: object
    note: object = dataclasses.field(default=None, compare=False)


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return isinstance(other, Point) and self.x == other.x

    def __hash__(self):
        return hash(self.x)


def key(value):
    return static_key(value, [])


@pytest.mark.parametrize(
    "values",
    [
        [0, 0.0, -0.0, False, 0j, complex(0.0, -0.0), Seconds(0), Slotted(0)],
        [1, 1.0, True, 1 + 0j, Level.LOW, Other.LOW, np.float32(1), np.float64(1)],
        [Seconds(1.01), Seconds(1.04), 1.01, 1.04],
        [Close(1.0), Close(1.25), 1.0],
        ["low", b"low", Name.LOW, Tagged("low", 1), Tagged("low", 2), Tagged("low", True)],
        [(1,), (1.0,), (True,), Row((1,)), [1], frozenset({1}), frozenset({True}), {1}],
        [Settings(1), Settings(1.0), Settings(True), Settings(Seconds(1))],
        [range(3), range(0, 3, 2), range(0, 4, 2), slice(3), slice(0, 3), slice(0.0, 3)],
        [math.nan, math.inf, -math.inf],
        [collections.deque([1]), collections.deque([1], 2), bytearray(b"1")],
        [None, ..., NotImplemented, 0],
    ],
)
def test_values_that_differ_have_different_keys(values):
    for i, a in enumerate(values):
        for b in values[i + 1 :]:
            assert key(a) != key(b), (a, b)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 10**30,
        lambda: float("nan"),
        lambda: complex("nan"),
        lambda: Seconds("1.25"),
        lambda: Tagged("a", [1, {"b": 2.0}]),
        lambda: Row((1, (2.5, "x"))),
        lambda: Settings((0.1, "sgd"), note=object()),
        lambda: Point(3),
        lambda: slice(1, None),
        lambda: {3, 4.5},
        lambda: collections.deque([1, 2]),
        lambda: Level.LOW,
        lambda: np.dtype(np.float32),
    ],
)
def test_equal_values_have_equal_keys(make):
    assert key(make()) == key(make())
    assert hash(key(make())) == hash(key(make()))


def test_a_key_holds_what_it_compares_and_not_the_object_that_changes():
    for value, change in [
        ({1, 2}, lambda s: s.add(3)),
        (collections.deque([1]), lambda d: d.append(2)),
        (bytearray(b"a"), lambda b: b.append(1)),
        (Tagged("a", 1), lambda t: setattr(t, "tag", 2)),
    ]:
        before = key(value)
        change(value)
        assert key(value) != before


def test_an_object_without_equality_is_itself_and_not_kept():
    class Thing:
        pass

    thing, needs = Thing(), []
    made = static_key(thing, needs)
    assert made == static_key(thing, []) != key(Thing())
    reference = weakref.ref(thing)
    del thing
    gc.collect()
    assert reference() is None
    assert made != key(Thing())  # even where the address is the same again
    assert [needed() for needed in needs] == [None]


def test_a_value_that_contains_itself():
    value = Tagged("a", None)
    value.tag = value
    assert key(value) == key(value) != key(Tagged("a", None))


def test_programs_are_made_for_each_value_of_an_argument():
    f = sg.function(lambda x, t: x * t)
    got = [float(f(jnp.float32(1), Seconds(t))) for t in (1.01, 1.04, 1.01)]
    np.testing.assert_allclose(got, [1.01, 1.04, 1.01])
    assert f.experimental_get_tracing_count() == 2

    g = sg.function(lambda x, values: x + sum(values))
    values = {1, 2}
    assert float(g(jnp.float32(0), values)) == 3
    values.add(4)
    assert float(g(jnp.float32(0), values)) == 7


def test_keys_of_a_dictionary_are_told_apart_by_type():
    f = sg.function(lambda d: next(iter(d)) * jnp.ones((), jnp.int32))
    x = jnp.zeros(())
    for _ in range(2):
        assert f({1: x}).dtype == jnp.int32
        assert f({1.0: x}).dtype == jnp.float32


def test_the_order_of_a_mapping_is_seen():
    class Batch(dict):
        pass

    first = sg.function(lambda batch: next(iter(batch.values())) * 1)
    a, b = jnp.float32(1), jnp.float32(2)
    for _ in range(3):
        assert float(first(Batch(a=a, b=b))) == 1
        assert float(first(Batch(b=b, a=a))) == 2
    assert first.experimental_get_tracing_count() == 2
