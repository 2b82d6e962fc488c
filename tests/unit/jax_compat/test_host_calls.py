import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stratagem._src.jax_compat.host_calls import call_host, can_pass, register_host_function

_register_once = {}


def registered(name, function):
    """Registers a function whose body the test may choose: a name is for good."""
    if name not in _register_once:
        register_host_function(name, lambda *views: _register_once[name](*views))
    _register_once[name] = function
    return name


def shape_of(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "float16",
        "float32",
        "complex64",
        ml_dtypes.bfloat16,
    ],
)
def test_a_function_gets_the_memory_of_the_program(dtype):
    def copy(operands, results):
        [array], [result] = operands, results
        assert array.dtype == np.dtype(dtype)
        result[:] = array

    name = registered("test_copy", copy)
    array = jnp.asarray(np.arange(6).reshape(2, 3).astype(dtype))
    [result] = jax.jit(lambda x: call_host(name, [shape_of(x)], x))(array)
    assert result.shape == (2, 3)
    np.testing.assert_array_equal(result, array)


def test_wide_types():
    def negate(operands, results):
        results[0][:] = -operands[0]

    name = registered("test_negate", negate)
    with jax.enable_x64(True):
        [result] = jax.jit(lambda x: call_host(name, [shape_of(x)], x))(np.array([2**40]))
    assert result.tolist() == [-(2**40)]


def test_it_runs_once_for_each_run_of_the_program_also_in_a_loop():
    calls = []

    def count(operands, results):
        calls.append(operands[0].tolist())
        results[0][:] = operands[0] + 1

    name = registered("test_count", count)
    program = jax.jit(
        lambda x: jax.lax.fori_loop(0, 3, lambda _, a: call_host(name, [shape_of(a)], a)[0], x)
    )
    for _ in range(2):
        assert program(np.float32([1])).tolist() == [4]
    assert calls == [[1], [2], [3]] * 2


def test_jax_calls_the_program_without_python_of_its_own():
    name = registered("test_fast", lambda operands, results: results[0].fill(1))
    program = jax.jit(lambda x: call_host(name, [shape_of(x)], x))
    x = jnp.zeros(2)
    assert "has_side_effect = true" in program.lower(x).as_text()
    program(x)
    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_filename))
    try:
        program(x)
    finally:
        sys.setprofile(None)
    assert not [path for path in frames if "pjit" in path]


def test_what_goes_wrong_is_an_error_of_the_program():
    name = registered("test_problem", lambda operands, results: "no bread today")
    program = jax.jit(lambda x: call_host(name, [shape_of(x)], x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="no bread today"):
        program(jnp.ones(2))

    def raises(operands, results):
        raise KeyError("butter")

    name = registered("test_problem", raises)
    with pytest.raises(jax.errors.JaxRuntimeError, match="butter"):
        program(jnp.ones(2))


def test_empty_arrays():
    def check(operands, results):
        assert operands[0].size == results[0].size == 0

    name = registered("test_empty", check)
    [result] = jax.jit(lambda x: call_host(name, [shape_of(x)], x))(jnp.zeros((0, 3)))
    assert result.shape == (0, 3)


def test_a_name_is_for_one_function():
    registered("test_twice", lambda operands, results: None)
    with pytest.raises(ValueError, match="test_twice"):
        register_host_function("test_twice", lambda operands, results: None)


def test_which_types_can_be_passed():
    assert can_pass(np.float32)
    assert can_pass(ml_dtypes.bfloat16)
    assert not can_pass(ml_dtypes.float8_e4m3fn)
