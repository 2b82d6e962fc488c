"""Scopes: used again, of the default strategy, and variables in those of other strategies."""

import copy

import jax.numpy as jnp
import pytest
from replicas import one_process

import stratagem as sg

pytestmark = pytest.mark.about("variables")

distribute = sg.distribute


def test_a_scope_object_is_used_again(placed_strategy):
    scope = placed_strategy.scope()
    with scope as entered:
        assert entered is placed_strategy
        with scope:
            inner = sg.Variable(1.0)
        outer = sg.Variable(1.0)
    assert not distribute.has_strategy()
    with scope:
        later = sg.Variable(1.0)
    assert not distribute.has_strategy()
    created = [placed_strategy.extended.variable_created_in_scope(v) for v in (inner, outer, later)]
    assert created == [True, True, True]


def test_a_scope_is_left_after_an_error(placed_strategy):
    scope = placed_strategy.scope()
    with pytest.raises(KeyError), scope:
        raise KeyError
    assert not distribute.has_strategy()
    with scope:
        assert distribute.get_strategy() is placed_strategy


def test_scopes_are_left_in_order(placed_strategy):
    scope = placed_strategy.scope()
    with pytest.raises(RuntimeError, match="not the innermost"):
        scope.__exit__(None, None, None)
    with distribute.get_strategy().scope(), scope:
        other = placed_strategy.scope()
        with pytest.raises(RuntimeError, match="not the innermost"):
            other.__exit__(None, None, None)
        assert distribute.get_strategy() is placed_strategy
    assert not distribute.has_strategy()


def test_the_default_strategys_scope_changes_nothing(placed_strategy):
    default = distribute.get_strategy()
    replica = distribute.get_replica_context()
    with default.scope() as entered:
        assert entered is default
        assert not distribute.has_strategy()
        assert not distribute.in_cross_replica_context()
        assert distribute.get_replica_context() is replica
        with default.scope():
            assert distribute.get_strategy() is default
        with placed_strategy.scope():
            assert distribute.get_strategy() is placed_strategy
        assert default.run(lambda: distribute.in_cross_replica_context()) is False
    with placed_strategy.scope():
        with pytest.raises(RuntimeError, match="cannot be entered inside the scope"):
            default.scope().__enter__()
        assert distribute.get_strategy() is placed_strategy


@one_process("makes a strategy on devices of its own")
def test_a_variable_is_not_updated_in_the_scope_of_another_strategy(placed_strategy, execute):
    other = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with placed_strategy.scope():
        v = sg.Variable([1.0], aggregation=sg.VariableAggregation.SUM)
        seen = sg.Variable([1.0], synchronization=sg.VariableSynchronization.ON_READ)
    slices = sg.IndexedSlices(jnp.ones(1), jnp.array([0]))
    for update in (
        lambda: v.assign([2.0]),
        lambda: v.assign_add([2.0]),
        lambda: v.scatter_add(slices),
        lambda: seen.assign([2.0]),
    ):
        with other.scope(), pytest.raises(RuntimeError, match="belongs to"):
            execute(update)
        with pytest.raises(RuntimeError, match="belongs to"):
            other.run(update)
    with other.scope():
        assert (
            float(v[0]) == 1.0
        )  # reading is allowed: to start another strategy's variable with it
    plain = sg.Variable(1.0)
    with other.scope():
        execute(lambda: plain.assign(2.0))
    assert float(plain) == 2.0


@one_process("makes a strategy on devices of its own")
def test_a_deep_copy_of_a_strategy_is_one_of_its_own():
    strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    duplicate = copy.deepcopy(strategy)
    assert duplicate.num_replicas_in_sync == 2
    with duplicate.scope():
        v = sg.Variable(1.0)
    assert v.distribute_strategy is duplicate
    assert duplicate.extended.variable_created_in_scope(v)
    assert not strategy.extended.variable_created_in_scope(v)
    total = duplicate.run(lambda: v + 1.0)
    assert float(duplicate.reduce("SUM", total, axis=None)) == 4.0
