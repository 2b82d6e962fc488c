"""Gradients that travel in another dtype: the option ``dtype`` of ``CommunicationOptions``."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replicas import components

import stratagem as sg

pytestmark = [pytest.mark.about("collectives"), pytest.mark.layout]

WIDTHS = {"bfloat16": 8, "float16": 11}
"""Bits of the significand: a rounding is off by at most two to the minus that."""


def options(dtype):
    return sg.distribute.experimental.CommunicationOptions(dtype=dtype)


def all_reduced(strategy, execute, fn, dtype, op="SUM"):
    """Returns what each replica gets of ``fn(replica_id)``."""

    def replica_fn():
        replica = sg.distribute.get_replica_context()
        value = fn(replica.replica_id_in_sync_group)
        return replica.all_reduce(op, value, options(dtype))

    return components(strategy, execute(lambda: strategy.run(replica_fn)))


@pytest.mark.spread("dtype", "op")
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_sums_and_means_are_rounded_as_documented(strategy, execute, dtype, op):
    n = strategy.num_replicas_in_sync
    base = np.random.default_rng(0).normal(size=(n, 3000)).astype(np.float32)
    parts = all_reduced(strategy, execute, lambda i: jnp.asarray(base)[i], dtype, op)
    exact = base.astype(np.float64).sum(0) / (n if op == "MEAN" else 1)
    sizes = np.abs(base).sum(0) / (n if op == "MEAN" else 1)
    for part in parts:
        assert part.dtype == jnp.float32
        np.testing.assert_array_equal(part, parts[0])
        error = np.abs(np.asarray(part) - exact)
        if n == 1:
            assert not error.any()
            continue
        assert error.max() > 0
        assert (error <= 4 * 2.0 ** -WIDTHS[dtype] * sizes).all()


def test_numbers_that_are_exact_in_the_wire_dtype_stay_exact(strategy, execute):
    n = strategy.num_replicas_in_sync
    parts = all_reduced(strategy, execute, lambda i: (i + 1.0) * jnp.arange(4.0), "bfloat16")
    for part in parts:
        np.testing.assert_array_equal(part, np.arange(4.0) * (n * (n + 1) / 2))


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "int64", "float64"])
def test_only_wider_floating_types_are_converted(strategy, execute, dtype):
    n = strategy.num_replicas_in_sync
    value = {"bool": True, "complex64": 1.0 + 2.0**-20 + 1j}.get(dtype, 2**20 + 1)
    wide = dtype.endswith("64") and dtype != "complex64"
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        parts = all_reduced(strategy, execute, lambda i: jnp.full(3, value, dtype), "bfloat16")
        for part in parts:
            assert part.dtype == ("int32" if dtype == "bool" and n > 1 else part.dtype)
            exact = np.full(3, value).astype(dtype).astype(np.complex128) * n
            if dtype == "float64":
                assert part.dtype == jnp.float64
                np.testing.assert_allclose(part, exact.real, rtol=0.01)
                assert n == 1 or (np.asarray(part) != exact.real).all()
            else:
                np.testing.assert_array_equal(np.asarray(part).astype(np.complex128), exact)


def test_extrema_are_exact(many, execute):
    value = np.float32(1.0 + 2.0**-20)
    [part, *_] = all_reduced(many, execute, lambda i: value * (1 + i), "bfloat16", "MIN")
    assert np.asarray(part) == value


def test_the_mean_of_large_numbers_fits_float16(many, execute):
    parts = all_reduced(many, execute, lambda i: jnp.full(5, 40000.0), "float16", "MEAN")
    for part in parts:
        np.testing.assert_allclose(part, 40000.0, rtol=2.0**-10)


def test_slices_travel_in_it_too(many, execute):
    value = np.float32(1.0 + 2.0**-20)

    def slices(i):
        return sg.IndexedSlices(jnp.full((1, 2), value), jnp.array([1]), (4, 2))

    for part in all_reduced(many, execute, slices, "bfloat16"):
        assert part.values.dtype == jnp.float32
        np.testing.assert_array_equal(part.values, 1.0)


def test_gradients_of_an_all_reduce(many, execute):
    n = many.num_replicas_in_sync

    def replica_fn():
        replica = sg.distribute.get_replica_context()

        def loss(x):
            return jnp.sum(replica.all_reduce("SUM", x, options("bfloat16")) * 2.0)

        return jax.grad(loss)(jnp.ones(3))

    for part in components(many, execute(lambda: many.run(replica_fn))):
        np.testing.assert_array_equal(part, 2.0 * n)
