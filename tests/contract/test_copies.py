"""copy and deepcopy of what strategies make."""

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from replicas import components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("variables")

ON_READ = sg.VariableSynchronization.ON_READ
SUM = sg.VariableAggregation.SUM


def _make(strategy, value, **options):
    with strategy.scope():
        return sg.Variable(value, **options)


def test_a_deep_copy_of_a_variable_is_a_variable_of_its_own(strategy, execute):
    v = _make(strategy, [1.0, 2.0], name="w", aggregation=SUM, trainable=False)
    duplicate = copy.deepcopy(v)
    assert type(duplicate) is type(v)
    assert (duplicate.name, duplicate.shape, duplicate.dtype) == (v.name, v.shape, v.dtype)
    assert (duplicate.aggregation, duplicate.trainable) == (SUM, False)
    assert duplicate.synchronization is v.synchronization
    assert duplicate.device == v.device

    def step():
        duplicate.assign_add(jnp.ones(2))
        return v + duplicate

    result = execute(lambda: strategy.run(step))
    size = strategy.num_replicas_in_sync
    np.testing.assert_array_equal(
        strategy.experimental_local_results(result)[0], [2 + size, 4 + size]
    )
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])
    v.assign([7.0, 7.0])
    np.testing.assert_array_equal(duplicate.numpy(), [1.0 + size, 2.0 + size])


@pytest.mark.layout
def test_of_a_variable_with_a_value_in_each_replica(strategy):
    v = _make(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)
    strategy.run(
        lambda: v.assign_add(
            sg.distribute.get_replica_context().replica_id_in_sync_group + jnp.float32(1)
        )
    )
    duplicate = copy.deepcopy(v)
    before = components(strategy, v)
    strategy.run(lambda: duplicate.assign_add(jnp.float32(1)))
    strategy.run(sg.function(lambda: v.assign_add(jnp.float32(0))))
    assert components(strategy, v) == before
    assert float(duplicate) == float(v) + strategy.num_replicas_in_sync


def test_structures_share_their_copies(strategy):
    v = _make(strategy, 1.0)
    model = {"a": v, "tied": [v]}
    duplicate = copy.deepcopy(model)
    assert duplicate["a"] is duplicate["tied"][0] is not v
    assert copy.copy(model)["a"] is v


def test_a_shallow_copy_is_the_same_variable(strategy):
    v = _make(strategy, 1.0)
    duplicate = copy.copy(v)
    duplicate.assign(2.0)
    assert float(v) == 2.0


def test_a_copy_outlives_the_variable(strategy, execute):
    model = {"v": _make(strategy, 1.0, aggregation=SUM)}
    execute(lambda: model["v"].assign_add(1.0))
    duplicate = copy.deepcopy(model["v"])
    execute(lambda: model["v"].assign_add(1.0))  # may give its array away, but not the copy's
    del model["v"]
    assert float(execute(lambda: duplicate + 0.0)) == 2.0


def test_not_in_a_compiled_function(strategy):
    v = _make(strategy, 1.0)
    with pytest.raises(NotImplementedError, match="cannot be copied inside"):
        sg.function(lambda: copy.deepcopy(v) + 0.0)()


def test_a_variable_that_cannot_be_pickled_says_what_to_do(strategy):
    for options in ({}, {"synchronization": ON_READ, "aggregation": SUM}):
        v = _make(strategy, 1.0, name="w", **options)
        if getattr(v, "strategy", None) is None or isinstance(
            strategy, sg.distribute.ParameterServerStrategy
        ):
            assert float(pickle.loads(pickle.dumps(v))) == 1
            continue
        with pytest.raises(sg.errors.ShippingError, match=r"'w:0' cannot be pickled.*Checkpoint"):
            pickle.dumps({"v": v})


def test_per_replica_and_mirrored_values(many):
    value = many.run(lambda: sg.distribute.get_replica_context().replica_id_in_sync_group + 1.0)
    for duplicate in (copy.copy(value), copy.deepcopy(value), copy.deepcopy([value])[0]):
        assert components(many, duplicate) == components(many, value)
    total = many.extended.reduce_to("SUM", value, value)
    assert float(copy.deepcopy(total)) == float(copy.copy(total)) == float(total)


@one_process("takes the values of all replicas")
def test_objects_in_a_per_replica_value_are_copied(many):
    value = many.run(_Box)
    duplicate = copy.deepcopy(value)
    duplicate.values[0].content.append(1)
    assert value.values[0].content == []
    assert copy.copy(value).values[0] is value.values[0]


class _Box:
    def __init__(self):
        self.content = []


def test_a_strategy(strategy):
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.copy(strategy)
