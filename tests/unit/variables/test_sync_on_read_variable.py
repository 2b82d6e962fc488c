import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable

ON_READ = sg.VariableSynchronization.ON_READ
Aggregation = sg.VariableAggregation


@pytest.fixture
def make(mirrored):
    return lambda *args, **options: mirrored(*args, synchronization=ON_READ, **options)


@pytest.mark.parametrize(
    ("aggregation", "read"),
    [(Aggregation.SUM, 7), (Aggregation.MEAN, 3.5), (Aggregation.ONLY_FIRST_REPLICA, 2)],
)
def test_a_read_aggregates(make, group, aggregation, read):
    v = make(0.0, aggregation=aggregation)
    assert type(v) is SyncOnReadVariable
    v.accept_from_program(group, group.assemble([np.float32(2), np.float32(5)]), shared=False)
    assert [float(part) for part in v.values] == [2, 5]
    assert float(v) == read


def test_without_aggregation_it_has_no_value_as_one(make):
    v = make(1.0)
    with pytest.raises(ValueError, match="aggregation SUM, MEAN or ONLY_FIRST_REPLICA"):
        float(v)
    assert [float(part) for part in v.values] == [1, 1]


@pytest.mark.parametrize(
    ("aggregation", "value", "parts"),
    [
        (Aggregation.SUM, 6.0, [3, 3]),
        (Aggregation.SUM, 7, [4, 3]),
        (Aggregation.SUM, -3, [-1, -2]),
        (Aggregation.MEAN, 6.0, [6, 6]),
        (Aggregation.ONLY_FIRST_REPLICA, 6.0, [6, 6]),
    ],
)
def test_a_total_is_divided_such_that_it_is_read_back(make, aggregation, value, parts):
    v = make(type(value)(0), aggregation=aggregation)
    v.assign(value)
    assert [part.item() for part in v.values] == parts
    assert v.numpy() == value


def test_adding_to_a_sum_from_outside_is_ambiguous(make):
    v = make(4.0, aggregation=Aggregation.SUM)
    with pytest.raises(ValueError, match=r"ambiguous.*strategy\.run"):
        v.assign_add(1.0)
    assert float(v) == 8


@pytest.mark.parametrize(("value", "shape"), [(1.0, (2,)), (np.ones((3, 2)), (6, 2))])
def test_a_program_sees_the_values_of_all(make, group, value, shape):
    v = make(value)
    assert v.program_shape == v.take_for_program(group, donate=False).shape == shape
    assert v.program_value(value).shape == shape
    assert v.program_shard_dim == 0


def test_a_snapshot_holds_every_replicas_value(make, group):
    v = make(0.0)
    v.accept_from_program(group, group.assemble([np.float32(2), np.float32(5)]), shared=False)
    before = v.snapshot()
    v.assign(9.0)
    v.restore_snapshot(before)
    assert [float(part) for part in v.values] == [2, 5]


@pytest.mark.parametrize("aggregation", [Aggregation.SUM, Aggregation.MEAN])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "bfloat16", "float16", "int32", "bool"])
def test_small_parts_are_added_up_on_the_host_as_programs_do_it(make, group, aggregation, dtype):
    if aggregation is Aggregation.MEAN and dtype in ("int32", "bool"):
        pytest.skip("means are for floating point")
    random = np.random.default_rng(0)
    parts = [(random.normal(size=5) * 1e4).astype(jnp.dtype(dtype)) for _ in range(2)]
    v = make(np.zeros_like(parts[0]), aggregation=aggregation)
    v.accept_from_program(group, group.assemble(parts), shared=False)
    by_program = v.strategy.extended.reduce_value(aggregation.reduce_op, v.per_replica())
    assert v.read_value().dtype == by_program.dtype
    np.testing.assert_array_equal(v.read_value(), by_program)


@pytest.mark.parametrize(("size", "programs"), [(5, 0), (100_000, 1)])
def test_only_large_parts_need_a_program(make, size, programs, monkeypatch):
    v = make(np.ones(size, np.float32), aggregation=Aggregation.SUM)
    launched = []
    reduce = type(v.strategy.extended).reduce_value
    monkeypatch.setattr(
        type(v.strategy.extended),
        "reduce_value",
        lambda self, *args: launched.append(args) or reduce(self, *args),
    )
    np.testing.assert_array_equal(v.read_value(), np.full(size, 2.0))
    assert len(launched) == programs


def test_what_was_read_can_be_combined_with_anything(make, mirrored):
    v, other = make(3.0, aggregation=Aggregation.SUM), mirrored(2.0)
    assert float(v.read_value() * other.read_value()) == 12
    assert float(v.read_value() * jax.device_put(2.0, jax.devices()[1])) == 12
