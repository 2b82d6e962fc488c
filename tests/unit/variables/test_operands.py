"""What a variable may be updated with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.core.errors import (
    NotAnArrayError,
    OperandTypeError,
    ShapeMismatchError,
    VariableError,
)
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.operands import checked_operand, kind_of
from stratagem._src.variables.updates import ASSIGN, ASSIGN_ADD, SCATTER_ADD


def _slices(values, indices):
    return IndexedSlices(np.float32(values), np.array(indices))


@pytest.mark.parametrize(
    ("operand", "dtype"),
    [
        ([1, 2], "float32"),
        (np.array([1, 2], np.int8), "float32"),
        (np.array([True, False]), "int32"),
        (np.array([1, 2], np.int64), "int8"),
        (jnp.ones(2, jnp.bfloat16), "float32"),
        (sg.Variable([1.0, 2.0]), "float32"),
    ],
    ids=str,
)
def test_what_fits_becomes_the_variables_dtype(operand, dtype):
    value = checked_operand(sg.Variable(np.zeros(2, dtype)), ASSIGN, operand)
    assert (value.dtype, value.shape) == (np.dtype(dtype), (2,))
    np.testing.assert_array_equal(np.float32(value), np.float32(operand))


@pytest.mark.parametrize(
    ("update", "operand", "dtype", "error", "message"),
    [
        (ASSIGN, [1.0], "float32", ShapeMismatchError, r"needs shape \(2,\), got \(1,\)"),
        (ASSIGN, 1.0, "float32", ShapeMismatchError, r"got \(\)"),
        (ASSIGN, [0.5, 1.0], "int32", OperandTypeError, r"lose information.*\.astype"),
        (ASSIGN, [1, 2], "bool", OperandTypeError, "lose information"),
        (ASSIGN, np.array([1, 300]), "int8", VariableError, "values from 1 to 300, which may not"),
        (ASSIGN, jnp.ones(2, jnp.int32), "int8", VariableError, "int32, which may not fit"),
        (ASSIGN, PerReplica([1, 2]), "float32", NotAnArrayError, "Reduce it first"),
        (ASSIGN_ADD, _slices([1], [0]), "float32", OperandTypeError, r"Use scatter_add\(\)"),
        (SCATTER_ADD, [1.0, 2.0], "float32", OperandTypeError, "takes an IndexedSlices"),
        (SCATTER_ADD, _slices([1], [2]), "float32", VariableError, r"in \[0, 2\), got 2 to 2"),
        (SCATTER_ADD, _slices([1], [-1]), "float32", VariableError, "got -1 to -1"),
        (SCATTER_ADD, _slices([1, 2], [0]), "float32", ShapeMismatchError, "vector of n indices"),
        (SCATTER_ADD, _slices([1], [[0]]), "float32", ShapeMismatchError, r"indices \(1, 1\)"),
    ],
)
def test_what_does_not_fit(update, operand, dtype, error, message):
    v = sg.Variable(np.zeros(2, dtype), name="w")
    with pytest.raises(error, match=message) as raised:
        checked_operand(v, update, operand)
    assert "'w" in str(raised.value)


def test_rows_of_a_scalar():
    with pytest.raises(ShapeMismatchError, match="is a scalar"):
        checked_operand(sg.Variable(1.0), SCATTER_ADD, _slices([1], [0]))


def test_slices_are_cast_and_keep_their_shape():
    slices = IndexedSlices(np.array([[1, 2]]), np.array([1]), (3, 2))
    checked = checked_operand(sg.Variable(np.zeros((3, 2), np.float32)), SCATTER_ADD, slices)
    assert (checked.values.dtype, checked.dense_shape) == (np.float32, (3, 2))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("bool", 0), ("int8", 1), ("uint32", 1), ("bfloat16", 2), ("float32", 2), ("complex64", 3)],
)
def test_kinds_are_ordered_by_what_they_can_hold(dtype, kind):
    assert kind_of(jnp.dtype(dtype)) == kind


def test_kinds_that_no_variable_holds():
    with pytest.raises(VariableError, match=r"jax\.random\.key_data"):
        kind_of(jax.random.key(0).dtype)
    with pytest.raises(VariableError, match="numbers or booleans"):
        kind_of(np.dtype("U1"))
