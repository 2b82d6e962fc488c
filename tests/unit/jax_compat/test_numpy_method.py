"""JAX's arrays have ``.numpy()``, as long as JAX lets a method be added to their class."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.jax_compat.numpy_method import give_arrays_a_numpy_method
from stratagem._src.tensorflow_api.host_tensor import HostTensor


def test_jax_still_lets_us():
    assert give_arrays_a_numpy_method()
    assert give_arrays_a_numpy_method()  # again: nothing happens


def test_arrays_become_numpys():
    array = jnp.arange(3.0)
    copied = array.numpy()
    assert type(copied) is np.ndarray
    copied[0] = 7  # a copy, as in TensorFlow
    np.testing.assert_array_equal(array, [0.0, 1.0, 2.0])
    assert isinstance(jnp.float32(1.5).numpy(), np.float32)


def test_shapes_have_tensorflow_s_methods():
    def compute(x):
        assert x.get_shape().as_list() == [2, 3]
        x.set_shape([None, 3])
        with pytest.raises(ValueError, match=r"got \(2, 4\) for an array of shape \(2, 3\)"):
            x.set_shape([2, 4])
        return x.get_shape().rank * x

    assert float(jax.jit(compute)(jnp.ones((2, 3)))[0, 0]) == compute(jnp.ones((2, 3)))[0, 0] == 2
    compute(HostTensor.of(np.ones((2, 3))))


def test_results_of_a_strategy():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32([context.replica_id_in_sync_group])
    )
    assert strategy.reduce("SUM", values, axis=0).numpy() == 1.0
    np.testing.assert_array_equal(strategy.gather(values, axis=0).numpy(), [0.0, 1.0])
    assert [v.numpy() for v in strategy.experimental_local_results(values)] == [0.0, 1.0]
    assert sg.Variable(2.0).read_value().numpy() == 2.0
    assert sg.constant(3.0).numpy() == 3.0
    assert sg.function(lambda: strategy.reduce("MEAN", values, axis=0))().numpy() == 0.5


@pytest.mark.parametrize("compile_", [jax.jit, sg.function], ids=["jit", "function"])
def test_traced_arrays_say_why_they_cannot(compile_):
    with pytest.raises(TypeError, match=r"numpy\(\) needs the value.*jax.debug.print"):
        compile_(lambda x: x.numpy())(jnp.ones(2))


def test_random_keys_have_no_numpy_value():
    with pytest.raises((TypeError, AttributeError)):
        jax.random.key(0).numpy()
