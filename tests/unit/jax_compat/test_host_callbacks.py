"""What callbacks of a program get: there at once, and theirs to keep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.execution.callbacks import guard_callbacks

SHAPE = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)


def debug(callback, x):
    jax.debug.callback(callback, x)
    return x


def ordered_debug(callback, x):
    jax.debug.callback(callback, x, ordered=True)
    return x


def io(callback, x):
    return jax.experimental.io_callback(callback, SHAPE, x)


def ordered_io(callback, x):
    return jax.experimental.io_callback(callback, SHAPE, x, ordered=True)


def pure(callback, x):
    return jax.pure_callback(callback, SHAPE, x)


WAYS = [debug, ordered_debug, io, ordered_io, pure]


def in_loop(way, callback, x):
    return jax.lax.scan(lambda h, _: (way(callback, h), None), x, None, length=1)[0]


def compiled(fn):
    """Returns a function as a compiled step runs it."""

    def run(x):
        traced = jax.make_jaxpr(fn)(x)
        jaxpr, _ = guard_callbacks(traced.jaxpr, [])
        return jax.core.eval_jaxpr(jaxpr, traced.consts, x)[0]

    return jax.jit(run)


@pytest.mark.parametrize("way", [*WAYS, *(functools.partial(in_loop, way) for way in WAYS)])
def test_what_a_callback_gets_needs_no_thread_that_copies_it(way):
    """A thread that waits in a collective copies nothing."""
    seen, was_ready = [], []

    def callback(x):
        was_ready.append(x.is_ready())
        seen.append(x)
        return x

    program = compiled(lambda x: way(callback, x * 2) + 1)
    for number in range(3):
        result = program(jnp.full(SHAPE.shape, number, SHAPE.dtype))
        assert np.asarray(result)[5, 7] == 2 * number + 1
        jax.effects_barrier()
    assert was_ready == [True] * 3
    # Kept beyond the call, and nobody else's memory.
    assert [np.unique(np.asarray(x)).tolist() for x in seen] == [[0.0], [2.0], [4.0]]
    assert all(isinstance(x, jax.Array) for x in seen)


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5)])
def test_a_callback_gets_arrays_of_every_kind(dtype, shape):
    seen = []
    array = (jnp.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    compiled(lambda x: debug(seen.append, x))(array)
    jax.effects_barrier()
    assert (seen[0].dtype, seen[0].shape) == (array.dtype, shape)
    assert np.array_equal(np.asarray(seen[0]), np.asarray(array))


def test_print_prints(capfd):
    def printing(x):
        jax.debug.print("{} of {n}", x[0], n=x.size)
        return x

    compiled(printing)(jnp.arange(3))
    jax.effects_barrier()
    assert capfd.readouterr().out == "0 of 3\n"
