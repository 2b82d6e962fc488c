import jax
import jax.numpy as jnp
import pytest

from stratagem._src.mesh import dispatch_queue as launch
from stratagem._src.mesh.replica_group import ReplicaGroup


@pytest.fixture
def two():
    return ReplicaGroup.of(jax.devices("cpu")[:2])


def test_the_program_before_is_waited_for(two):
    program = jax.jit(lambda x: [x + 1])
    (first,) = launch.launch(program, (jnp.float32(1),), two, "test")
    assert launch.QUEUE.in_flight is first
    launch.launch(program, (jnp.float32(1),), None, "test")
    assert launch.QUEUE.in_flight is first
    (second,) = launch.launch(program, (jnp.float32(1),), two, "test")
    assert launch.QUEUE.in_flight is second


def test_a_deleted_result_is_not_waited_for(two):
    program = jax.jit(lambda x: [x + 1])
    launch.launch(program, (jnp.float32(1),), two, "test")[0].delete()
    assert float(launch.launch(program, (jnp.float32(1),), two, "test")[0]) == 2


def test_a_program_that_cannot_start_leaves_the_launcher_usable(two):
    with pytest.raises(TypeError):
        launch.launch(jax.jit(lambda x: [x]), ("text",), two, "test")
    assert float(launch.launch(jax.jit(lambda x: [x]), (1.0,), two, "test")[0]) == 1


def test_a_host_callback_may_not_wait_for_a_program(two):
    with launch.in_host_callback(), pytest.raises(RuntimeError, match="host callback"):
        launch.launch(jax.jit(lambda x: [x]), (1.0,), two, "test")


def test_devices_of_several_processes_need_somebody_who_watches(monkeypatch):
    monkeypatch.setattr(launch, "_monitor", None)
    with pytest.raises(RuntimeError, match="TPUStrategy or experimental_connect_to_cluster"):
        launch.process_monitor()
