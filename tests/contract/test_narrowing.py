"""Whole numbers of 64 bits never become other numbers without a word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

pytestmark = pytest.mark.about("calls")

BIG = np.array([2**40 + 7])
SMALL = np.array([2**30, -5])


def test_arguments_of_run_that_do_not_fit_are_refused(strategy, execute):
    for value in (BIG, BIG[0], {"nested": [BIG]}):
        with pytest.raises(ValueError, match=r"int64 values from 1099511627783 to 109951162778"):
            execute(lambda value=value: strategy.run(lambda x: x, args=(value,)))


def test_arguments_of_functions_that_do_not_fit_are_refused(strategy, execute):
    with pytest.raises(ValueError, match="do not fit int32"):
        sg.function(lambda x: strategy.run(lambda y: y + 0, args=(x,)))(BIG)


def test_arguments_that_fit_keep_their_values(strategy, execute, local):
    result = execute(lambda: strategy.run(lambda x: jnp.asarray(x) + 0, args=(SMALL,)))
    for component in local(result):
        assert np.array_equal(component, SMALL)


def test_values_from_functions_that_do_not_fit_are_refused(strategy):
    with pytest.raises(ValueError, match="do not fit int32"):
        strategy.experimental_distribute_values_from_function(lambda _: BIG)


def test_values_from_functions_that_fit_keep_their_values(strategy, local):
    values = strategy.experimental_distribute_values_from_function(lambda _: SMALL)
    assert all(np.array_equal(component, SMALL) for component in local(values))


def test_initial_values_that_do_not_fit_are_refused(strategy):
    with strategy.scope():
        with pytest.raises(ValueError, match=r"3000000000 do not fit int32"):
            sg.Variable(np.int64(3_000_000_000))
        with pytest.raises(ValueError, match=r"do not fit int8"):
            sg.Variable(300, dtype=jnp.int8)
        assert int(sg.Variable(np.int64(2_000_000_000))) == 2_000_000_000


def test_results_that_do_not_fit_are_refused(strategy, execute):
    if strategy.num_replicas_in_sync == 1:
        pytest.skip("one replica's result is not turned into an array")
    with pytest.raises(ValueError, match="do not fit int32"):
        execute(lambda: strategy.run(lambda: BIG.copy()))


def test_collectives_of_what_does_not_fit_are_refused(strategy, execute):
    def step():
        replica = sg.distribute.get_replica_context()
        return replica.all_reduce("SUM", BIG)

    with pytest.raises(ValueError, match="do not fit int32"):
        execute(lambda: strategy.run(step))


def test_operands_of_variables_that_do_not_fit_are_refused(strategy, execute):
    with strategy.scope():
        v = sg.Variable(3, aggregation=sg.VariableAggregation.ONLY_FIRST_REPLICA)
    for compute in (lambda: v + BIG[0], lambda: BIG[0] * v, lambda: v < BIG[0]):
        with pytest.raises(ValueError, match="do not fit int32"):
            execute(compute)


def test_indices_of_rows_that_do_not_fit_are_refused(strategy):
    with strategy.scope():
        v = sg.Variable(np.zeros((3, 1), np.float32))
    rows = sg.IndexedSlices(np.ones((1, 1), np.float32), np.array([2**32]))
    with pytest.raises(ValueError, match=r"do not fit int32|indices in \[0, 3\)"):
        v.scatter_add(rows)
    assert not np.any(v.numpy())


def test_constants_that_do_not_fit_are_refused():
    for value in (BIG, np.uint64(2**63)):
        for make in (sg.constant, sg.identity):
            with pytest.raises(ValueError, match="do not fit"):
                make(value)
    assert int(sg.constant(np.int64(7))) == 7


def test_nothing_is_refused_with_64_bits():
    with jax.enable_x64(True):
        assert int(sg.constant(BIG)[0]) == BIG[0]
        assert int(sg.Variable(BIG)[0]) == BIG[0]
