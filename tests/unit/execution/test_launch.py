import jax
import jax.numpy as jnp
import pytest

from stratagem.core import launch


def test_the_program_before_is_waited_for():
    program = jax.jit(lambda x: [x + 1])
    (first,) = launch.launch(program, (jnp.float32(1),), True)
    assert launch._in_flight is first
    launch.launch(program, (jnp.float32(1),), False)
    assert launch._in_flight is first
    (second,) = launch.launch(program, (jnp.float32(1),), True)
    assert launch._in_flight is second


def test_a_deleted_result_is_not_waited_for():
    program = jax.jit(lambda x: [x + 1])
    launch.launch(program, (jnp.float32(1),), True)[0].delete()
    assert float(launch.launch(program, (jnp.float32(1),), True)[0]) == 2


def test_a_program_that_cannot_start_leaves_the_launcher_usable():
    with pytest.raises(TypeError):
        launch.launch(jax.jit(lambda x: [x]), ("text",), True)
    assert float(launch.launch(jax.jit(lambda x: [x]), (1.0,), True)[0]) == 1


def test_a_host_callback_may_not_wait_for_a_program():
    with launch.in_host_callback(), pytest.raises(RuntimeError, match="host callback"):
        launch.launch(jax.jit(lambda x: [x]), (1.0,), True)
