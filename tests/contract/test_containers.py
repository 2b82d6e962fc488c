"""Users' own containers as arguments and results."""

import collections
import dataclasses
import types
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import pytest
from replicas import one_process

import stratagem as sg

pytestmark = pytest.mark.about("calls")


class Batch(dict):
    """A dictionary with attributes, as many programs have one."""

    def __getattr__(self, name):
        return self[name]


class Frozen(Mapping):
    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Columns(collections.OrderedDict):
    pass


class Row(list):
    pass


class Pair(tuple):
    __slots__ = ()


@dataclasses.dataclass
class Example:
    x: object
    y: object


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrozenExample:
    x: object
    y: object = None

    def __post_init__(self):
        object.__setattr__(self, "y", self.y * 10.0)  # must not happen once more on the way


class MaskedArray:
    """Says itself how it is taken apart, as TensorFlow lets classes do."""

    def __init__(self, mask, value):
        self.mask, self.value = mask, value

    def __tf_flatten__(self):
        return (self.mask,), (self.value,)

    @classmethod
    def __tf_unflatten__(cls, metadata, components):
        return cls(*metadata, *components)


class AttrsLike:
    """What the attrs library makes: a class with a list of its attributes."""

    __attrs_attrs__ = (types.SimpleNamespace(name="x"), types.SimpleNamespace(name="_y"))

    def __init__(self, x, y):
        self.x, self._y = x, y


def _make(x, y):
    """Returns a structure of one container of each kind, all with the same two values."""
    return Batch(
        mapping=Frozen({"y": y, "x": x}),
        ordered=Columns([("y", y), ("x", x)]),
        proxy=types.MappingProxyType({"y": y, "x": x}),
        user=collections.UserDict(y=y, x=x),
        sequences=Row([x, Pair((y,))]),
        dataclass=Example(x, {"y": [y]}),
        described=MaskedArray(True, (x, y)),
        attrs=AttrsLike(x, y),
    )


def _take_apart(made):
    """Returns the two values, having checked that they are in all containers of what was made."""
    assert type(made) is Batch
    for name, kind in KINDS.items():
        assert type(made[name]) is kind, name
    assert type(made.sequences[1]) is Pair
    assert list(made.ordered) == ["y", "x"]
    found = [
        *((made[name]["x"], made[name]["y"]) for name in ("mapping", "ordered", "proxy", "user")),
        (made.sequences[0], *made.sequences[1]),
        (made.dataclass.x, *made.dataclass.y["y"]),
        made.described.value,
        (made.attrs.x, made.attrs._y),
    ]
    for x, y in found[1:]:
        for value, first in ((x, found[0][0]), (y, found[0][1])):
            assert type(value) is type(first)
    return found[-1]


KINDS = {
    "mapping": Frozen,
    "ordered": Columns,
    "proxy": types.MappingProxyType,
    "user": collections.UserDict,
    "sequences": Row,
    "dataclass": Example,
    "described": MaskedArray,
    "attrs": AttrsLike,
}


def _numbers(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: np.full((2,), ctx.replica_id_in_sync_group, np.float32)
    )


def _total(strategy, value):
    return float(strategy.reduce("SUM", value, axis=None))


def test_as_argument_and_result_of_run(strategy, execute, local):
    def step(batch):
        x, y = _take_apart(batch)
        return _make(x + 1.0, y * 2.0)

    result = execute(lambda batch: strategy.run(step, (batch,)), _make(_numbers(strategy), 3.0))
    x, y = _take_apart(result)
    for index, part in enumerate(local(x)):
        np.testing.assert_array_equal(part, [index + 1.0, index + 1.0])
    assert y == 6.0


def test_arrays_inside_are_the_same_in_every_replica(strategy, execute):
    def step(batch):
        x, y = _take_apart(batch)
        return (x + y).sum()

    batch = _make(np.ones(2, np.float32), jnp.ones(2))
    result = execute(lambda batch: strategy.run(step, kwargs={"batch": batch}), batch)
    assert _total(strategy, result) == 4.0 * strategy.num_replicas_in_sync


def test_reduced(strategy, execute):
    size = strategy.num_replicas_in_sync

    def step(value):
        return strategy.reduce("SUM", strategy.run(lambda v: v, (value,)), axis=None)

    result = execute(step, _make(_numbers(strategy), [_numbers(strategy)]))
    x, [y] = _take_apart(result)
    np.testing.assert_array_equal(x, [size * (size - 1) / 2] * 2)
    np.testing.assert_array_equal(y, x)
    along = strategy.reduce("MEAN", _make(_numbers(strategy), _numbers(strategy)), axis=0)
    np.testing.assert_allclose(_take_apart(along)[1], (size - 1) / 2)


@pytest.mark.layout
def test_gathered(strategy, execute):
    result = execute(
        lambda value: strategy.gather(value, axis=0), _make(_numbers(strategy), _numbers(strategy))
    )
    x, y = _take_apart(result)
    assert x.shape == y.shape == (2 * strategy.num_replicas_in_sync,)


def test_local_results(strategy):
    value = strategy.run(lambda: _make(jnp.ones(()), 2.0))
    results = strategy.experimental_local_results(value)
    assert len(results) == strategy.replica_group.local_size
    for result in results:
        assert list(map(float, _take_apart(result))) == [1.0, 2.0]


def test_in_collectives(strategy, execute):
    def step():
        replica = sg.distribute.get_replica_context()
        summed = replica.all_reduce("SUM", _make(jnp.ones(()), 2.0))
        gathered = replica.all_gather(_make(jnp.ones(1), jnp.ones(2)), axis=0)
        merged = replica.merge_call(lambda strategy, value: value, args=(_make(jnp.ones(3), 1),))
        return *_take_apart(summed), _take_apart(gathered)[1].sum(), _take_apart(merged)[0].sum()

    size = strategy.num_replicas_in_sync
    results = execute(lambda: strategy.run(step))
    for result, expected in zip(results, [size, 2.0 * size, 2.0 * size, 3.0], strict=True):
        for part in strategy.experimental_local_results(result):
            assert float(part) == expected


def test_values_from_a_function(strategy):
    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: _make(np.float32(ctx.replica_id_in_sync_group), np.ones(1))
    )
    size = strategy.num_replicas_in_sync
    assert _total(strategy, _take_apart(value)[0]) == size * (size - 1) / 2


def test_a_program_is_made_once(strategy):
    traces = []

    @sg.function
    def step(batch):
        traces.append(None)
        return strategy.run(lambda batch: _take_apart(batch)[0] * 2.0, (batch,))

    for number in range(4):
        value = _make(jnp.full((2,), float(number)), _numbers(strategy))
        [first, *_] = strategy.experimental_local_results(step(value))
        np.testing.assert_array_equal(first, [2.0 * number] * 2)
    assert len(traces) == 1


def test_a_dataclass_is_not_made_anew_by_its_constructor(strategy, execute):
    example = FrozenExample(x=_numbers(strategy), y=1.0)
    result = execute(lambda example: strategy.run(lambda e: e, (example,)), example)
    assert isinstance(result, FrozenExample)
    assert result.y == 10.0


def test_an_object_without_arrays_stays_itself(strategy):
    """A model or a configuration may be a dataclass too, and what a replica does to it counts."""
    with strategy.scope():
        model = Example(sg.Variable(1.0), 0)

    def step(model):
        model.y += 1
        return model.x + 1.0

    strategy.run(step, (model,))
    assert model.y == strategy.replica_group.local_size


@one_process("a worker does not see what the replicas of others return")
def test_replicas_with_other_keys_are_refused(many):
    def step():
        first = sg.distribute.get_replica_context().replica_index == 0
        return Batch(x=jnp.ones(())) if first else Batch(y=jnp.ones(()))

    with pytest.raises(RuntimeError, match="same structure"):
        many.run(step)


def test_gradients_of_a_mapping_of_variables(strategy, execute):
    with strategy.scope():
        weights = Batch(a=sg.Variable(2.0), b=sg.Variable(3.0))

    def step():
        loss = sg.value_and_grad(
            lambda: (weights.a * weights.b, Batch(seen=weights.a + 0.0)), weights, has_aux=True
        )
        (_, aux), gradients = loss()
        assert type(aux) is type(gradients) is Batch
        return gradients.a, gradients.b, aux.seen

    results = execute(lambda: strategy.run(step))
    assert [float(strategy.experimental_local_results(r)[0]) for r in results] == [3.0, 2.0, 2.0]
