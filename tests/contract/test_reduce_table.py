"""Every dtype, operation and axis of a reduction against NumPy: the same value and dtype everywhere."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

pytestmark = [pytest.mark.about("collectives"), pytest.mark.layout]

WITH_X64 = ("int64", "uint64", "float64", "complex128")
QUICK = ["bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64", "int64"]
# Of the same kind, and with the same rules, as one of the above.
BREADTH = ["int16", "int32", "uint8", "uint16", "uint64", "float64", "complex128"]
DTYPES = [*QUICK, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in BREADTH)]
OPS = ["SUM", "MEAN", "MIN", "MAX"]
AXES = [None, 0, -1, (0, 1)]


def is_complex(dtype):
    return jnp.issubdtype(jnp.dtype(dtype), jnp.complexfloating)


def expected_dtype(op, dtype):
    dtype = jnp.dtype(dtype)
    if op == "MEAN" and not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.promote_types(dtype, jnp.float32)
    return jnp.dtype("int32") if op == "SUM" and dtype == np.bool_ else dtype


def expected(op, arrays, axis):
    """Returns what NumPy makes of the replicas' arrays, with numbers that are wide enough."""
    dtype = arrays[0].dtype
    axes = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(a % 2 for a in axes)
    floating = jnp.issubdtype(dtype, jnp.floating)
    widens = floating or (op == "MEAN" and not is_complex(dtype))
    wide = [a.astype(np.float64) if widens else a for a in arrays]
    if op in ("SUM", "MEAN"):
        total = sum(a.sum(axes, dtype=None if a.dtype != bool else np.int32) for a in wide)
        count = (
            len(arrays)
            if axis is None
            else sum(np.prod([a.shape[d] for d in axes]) for a in arrays)
        )
        value = total / count if op == "MEAN" else total
    else:
        combine = np.minimum if op == "MIN" else np.maximum
        if axis is None:
            value = combine.reduce(wide)
        else:
            value = combine.reduce([combine.reduce(a, axes) for a in wide if a.size])
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(expected_dtype(op, dtype))


def numbers(dtype, rows, replica):
    generator = np.random.default_rng([rows, replica])
    dtype = jnp.dtype(dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, (rows, 3)).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = np.iinfo(dtype)
        array = generator.integers(limits.min // 2, limits.max // 2, (rows, 3)).astype(dtype)
        array[:1, 0] = limits.max if replica else limits.min
        return array
    array = generator.integers(-9, 9, (rows, 3)).astype(dtype)
    if is_complex(dtype):
        return (array + 1j * array[::-1]).astype(dtype)
    if dtype == np.float16:
        array[:, 0] = 60000 if replica % 3 != 1 else -60000  # the sum on the way does not fit
    array[:1, 1] = np.nan if replica == 1 else np.inf
    if replica == 0:
        array[:1, 2] = -np.inf
    return array


def check(results, arrays, dtype, axes):
    for op in OPS:
        for axis in axes:
            if is_complex(dtype) and op in ("MIN", "MAX"):
                continue
            got = np.asarray(results[op, axis])
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                wanted = expected(op, arrays, axis)
            assert got.dtype == wanted.dtype, (op, axis)
            kind = np.complex128 if is_complex(dtype) else np.float64
            tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-6)
            # Means of large integers of both signs are small, and were rounded when these were added.
            is_integer = jnp.issubdtype(arrays[0].dtype, jnp.integer)
            absolute = 1e-6 * (float(np.iinfo(arrays[0].dtype).max) if is_integer else 1.0)
            if jnp.issubdtype(wanted.dtype, jnp.integer):
                assert np.array_equal(got, wanted), (op, axis)
            else:
                np.testing.assert_allclose(
                    got.astype(kind),
                    wanted.astype(kind),
                    tolerance,
                    absolute,
                    err_msg=f"{op} {axis}",
                )


def reduced(strategy, value, dtype, axes):
    ops = ["SUM", "MEAN"] if is_complex(dtype) else OPS
    return [strategy.reduce(op, value, axis=axis) for op in ops for axis in axes]


def by_name(results, dtype, axes):
    ops = ["SUM", "MEAN"] if is_complex(dtype) else OPS
    return dict(zip([(op, axis) for op in ops for axis in axes], results, strict=True))


def distribute(strategy, arrays):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: arrays[ctx.replica_id_in_sync_group]
    )


def x64_for(dtype):
    return jax.enable_x64(True) if dtype in WITH_X64 else contextlib.nullcontext()


@pytest.mark.spread("dtype")
@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_is_what_numpy_gives(strategy, execute, dtype):
    arrays = [numbers(dtype, 2, i) for i in range(strategy.num_replicas_in_sync)]
    with x64_for(dtype):
        results = execute(
            lambda value: reduced(strategy, value, dtype, AXES), distribute(strategy, arrays)
        )
        check(by_name(results, dtype, AXES), arrays, dtype, AXES)


@pytest.mark.spread("dtype")
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_is_what_numpy_gives(strategy, execute, dtype):
    arrays = [numbers(dtype, 2, i) for i in range(strategy.num_replicas_in_sync)]
    ops = ["SUM", "MEAN"] if is_complex(dtype) else OPS

    def in_replica(value):
        replica = sg.distribute.get_replica_context()
        return [replica.all_reduce(op, value) for op in ops]

    with x64_for(dtype):
        results = execute(
            lambda value: strategy.run(in_replica, args=(value,)), distribute(strategy, arrays)
        )
        first = [strategy.experimental_local_results(result)[0] for result in results]
        check(by_name(first, dtype, [None]), arrays, dtype, [None])


@pytest.mark.spread("dtype")
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "float32", "complex64"])
def test_replicas_that_hold_more_or_fewer_rows_or_none(many, dtype):
    count = many.num_replicas_in_sync
    arrays = [numbers(dtype, (i + 1) % count, i) for i in range(count)]
    axes = [0, (0, 1)]
    results = reduced(many, distribute(many, arrays), dtype, axes)
    check(by_name(results, dtype, axes), arrays, dtype, axes)


@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.parametrize("axis", [None, 0])
def test_complex_numbers_have_no_order(many, execute, op, axis):
    value = distribute(many, [np.ones(2, np.complex64)] * many.num_replicas_in_sync)
    with pytest.raises(ValueError, match="numbers that have an order, got complex64"):
        execute(lambda value: many.reduce(op, value, axis=axis), value)


def test_sums_of_complex_numbers_that_are_known_to_be_zero(many, execute):
    """XLA cannot compile its own all-reduce of such a constant."""
    empty = distribute(many, [np.zeros((0, 3), np.complex64)] * many.num_replicas_in_sync)

    def in_replica(value):
        replica = sg.distribute.get_replica_context()
        constant = jnp.zeros(3, jnp.complex64)
        return [
            replica.all_reduce("SUM", constant),
            replica.all_reduce("MEAN", value.sum(axis=0)),
            replica.all_reduce("SUM", jnp.zeros_like(constant) * replica.replica_id_in_sync_group),
        ]

    def step(value):
        return [*many.run(in_replica, args=(value,)), many.reduce("SUM", value, axis=0)]

    *first, last = execute(step, empty)
    for result in [*(many.experimental_local_results(value)[0] for value in first), last]:
        assert np.array_equal(np.asarray(result), np.zeros(3, np.complex64))


@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_a_replica_that_holds_nan_has_the_gradient_of_the_extremum(many, execute, op):
    count = many.num_replicas_in_sync
    value = distribute(many, [np.float32(np.nan if i == 1 else i) for i in range(count)])

    def in_replica(x):
        replica = sg.distribute.get_replica_context()
        return jax.grad(lambda x: replica.all_reduce(op, x))(x)

    gradients = execute(lambda value: many.run(in_replica, args=(value,)), value)
    local = [float(g) for g in many.experimental_local_results(gradients)]
    assert not np.isnan(local).any()
