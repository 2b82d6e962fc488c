"""JAX calls of a thread that cannot wait for XLA's thread pool."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.core import trace_state_clean

from stratagem._src.jax_compat import thread_pool_bypass
from stratagem._src.jax_compat.thread_pool_bypass import aligned, bypass_thread_pool


def unaligned(shape, dtype=np.float32):
    """Returns an array that XLA cannot take over."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + 128, np.uint8)
    start = -room.ctypes.data % 64 + 8
    array = room[start : start + size].view(dtype).reshape(shape)
    array[...] = np.arange(array.size).reshape(shape) % 251
    return array


BIG = unaligned((4096, 1025))


def test_this_version_of_jax_has_what_is_needed():
    assert thread_pool_bypass._trace is not None


@pytest.mark.parametrize(
    "put", [jnp.asarray, jnp.array, jax.device_put, lambda x: jax.device_put(x, jax.devices()[0])]
)
def test_an_array_of_the_host_is_there_at_once(put):
    with bypass_thread_pool():
        array = put(BIG)
        assert array.is_ready()
    assert np.array_equal(np.asarray(array), BIG)
    assert isinstance(array, jax.Array)
    assert array.committed == put(BIG).committed


def test_a_compiled_function_gets_arrays_of_the_host():
    add = jax.jit(lambda x, y: x + y)
    with bypass_thread_pool():
        assert np.array_equal(np.asarray(add(jnp.float32(1), BIG)), BIG + 1)
        assert np.array_equal(np.asarray(jax.nn.relu(-BIG)), np.zeros_like(BIG))
        gradient = jax.grad(lambda x: jnp.sum(jnp.square(x)))(BIG)
    assert np.array_equal(np.asarray(gradient), 2 * BIG)


@pytest.mark.parametrize("is_weak", [False, True])
def test_an_array_goes_to_another_device_with_its_type(is_weak):
    target = jax.devices()[-1]
    array = jnp.full((300, 300), 2.0) if is_weak else jnp.full((300, 300), 2.0, jnp.float32)
    expected = jax.device_put(array, target)
    with bypass_thread_pool():
        moved = jax.device_put(array, target)
    assert (moved.devices(), moved.weak_type, moved.dtype, moved.committed) == (
        expected.devices(),
        expected.weak_type,
        expected.dtype,
        expected.committed,
    )
    assert np.array_equal(np.asarray(moved), np.asarray(array))


def test_an_array_is_sharded():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "x")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    with bypass_thread_pool():
        array = jax.device_put(BIG, sharding)
        assert array.is_ready()
        again = jax.device_put(array, jax.devices()[0])
    assert array.sharding == sharding
    assert np.array_equal(np.asarray(array), BIG)
    assert np.array_equal(np.asarray(again), BIG)


def test_what_jax_refuses_is_refused():
    with bypass_thread_pool(), pytest.raises((TypeError, ValueError), match="masked"):
        jnp.sin(np.ma.masked_array(BIG, BIG > 3))


def test_the_thread_is_as_it_was_afterwards():
    with pytest.raises(KeyError), bypass_thread_pool():
        raise KeyError
    assert trace_state_clean()


def test_aligned_memory():
    copy = aligned(BIG)
    assert copy.ctypes.data % 64 == 0
    assert np.array_equal(copy, BIG)


IN_A_CALLBACK = """
import jax, jax.numpy as jnp, numpy as np, stratagem as sg
mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")), ("devices",))

def look(x):
    with jax.set_mesh(mesh):
        return x

print(sg.function(lambda x: jax.pure_callback(look, x, x))(jnp.float32(3)))
"""


def test_one_device_needs_none_of_it():
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALLBACK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "3.0", done.stderr
