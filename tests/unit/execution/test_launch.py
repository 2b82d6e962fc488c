import jax
import jax.numpy as jnp
import pytest

from stratagem.core import launch


def test_the_program_before_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(launch, "_wait", waited.append)
    program = jax.jit(lambda x: x + 1)
    first = launch.launch(program, (jnp.float32(1),), True)
    launch.launch(program, (jnp.float32(1),), True)
    assert waited[-1] is first
    before = len(waited)
    launch.launch(program, (jnp.float32(1),), False)
    assert len(waited) == before


def test_a_deleted_result_is_not_waited_for():
    program = jax.jit(lambda x: x + 1)
    launch.launch(program, (jnp.float32(1),), True).delete()
    assert float(launch.launch(program, (jnp.float32(1),), True)) == 2


def test_a_program_that_cannot_start_leaves_the_launcher_usable():
    with pytest.raises(TypeError):
        launch.launch(jax.jit(lambda x: x), ("text",), True)
    assert float(launch.launch(jax.jit(lambda x: x), (1.0,), True)) == 1
