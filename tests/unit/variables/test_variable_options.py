import numpy as np
import pytest

import stratagem as sg
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization


@pytest.mark.parametrize(
    ("aggregation", "reduce_op"),
    [
        (VariableAggregation.NONE, None),
        (VariableAggregation.SUM, ReduceOp.SUM),
        (VariableAggregation.MEAN, ReduceOp.MEAN),
        (VariableAggregation.ONLY_FIRST_REPLICA, None),
    ],
)
def test_reduce_op_of_an_aggregation(aggregation, reduce_op):
    assert aggregation.reduce_op is reduce_op


@pytest.mark.parametrize(
    ("synchronization", "asked", "trainable"),
    [
        (VariableSynchronization.AUTO, None, True),
        (VariableSynchronization.ON_WRITE, None, True),
        (VariableSynchronization.ON_READ, None, False),
        (VariableSynchronization.ON_WRITE, False, False),
    ],
)
def test_which_variables_are_trainable(mirrored, synchronization, asked, trainable):
    v = mirrored(1.0, synchronization=synchronization, trainable=asked)
    assert v.trainable is trainable
    assert (v.synchronization is VariableSynchronization.ON_READ) is (
        synchronization is VariableSynchronization.ON_READ
    )


def test_a_mean_of_whole_numbers_is_refused(mirrored):
    with pytest.raises(ValueError, match="Use a float dtype, or aggregation SUM"):
        mirrored(1, aggregation=VariableAggregation.MEAN)
    assert sg.Variable(1, aggregation=VariableAggregation.MEAN).aggregation is (
        VariableAggregation.MEAN
    )


def test_an_initial_value_is_taken_before_the_constructor_returns():
    # JAX's own copy of an array that is not aligned is made by another thread, now and then too late.
    for _ in range(60):
        array = np.ones(300_001, np.float32)[1:]
        v = sg.Variable(array)
        array[:] = 2
        assert float(v.value()[-1]) == 1
