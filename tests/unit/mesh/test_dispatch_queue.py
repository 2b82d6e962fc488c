"""Programs with collectives are launched one after the other, and in one order by all processes."""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

from stratagem._src.mesh import dispatch_queue as launch
from stratagem._src.mesh import process_monitor as monitoring
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
    monkeypatch.setattr(monitoring, "_monitor", None)
    with pytest.raises(RuntimeError, match="TPUStrategy or experimental_connect_to_cluster"):
        monitoring.process_monitor()


class TwoProcesses:
    """A group whose devices belong to two processes."""

    serialize_programs = spans_processes = True


class Monitor:
    """The monitor of a job: notes what happens, and calls ``talk`` while workers would talk."""

    def __init__(self, talk):
        self.talk = talk
        self.events = []

    def before_launch(self, name, fingerprint, listing):
        self.events.append(f"agree on {name}")
        self.talk()

    def run(self, program):
        return program()


@pytest.fixture
def monitored(monkeypatch):
    """Returns a function that makes a monitor the one of this process."""

    def install(talk):
        monitor = Monitor(talk)
        monkeypatch.setattr(monitoring, "_monitor", monitor)
        return monitor

    return install


def in_thread(call):
    """Runs ``call`` in another thread, for at most ten seconds."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(10)


def test_local_programs_are_launched_while_workers_talk(two, monitored):
    program = jax.jit(lambda x: [x + 1])
    here = []

    def talk():
        # In another thread: a lock that is held here would make it wait.
        here.append(in_thread(lambda: launch.launch(program, (jnp.float32(1),), two, "local")))

    monitored(talk)
    identity = monitoring.ProgramIdentity("step", "same")
    finished = []
    launch.dispatch(lambda: 3, TwoProcesses(), identity=identity, finish=finished.append)
    assert finished == [3]
    assert float(here[0][0]) == 2


def test_programs_of_several_processes_never_overlap(monitored):
    monitor = monitored(lambda: time.sleep(0.001))

    def run(name):
        def note(what):
            monitor.events.append(f"{what} {name}")

        for _ in range(20):
            launch.dispatch(
                lambda: note("launch"),
                TwoProcesses(),
                identity=monitoring.ProgramIdentity(name, name),
                finish=lambda _: note("finish"),
            )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, "AB"))
    for first in range(0, len(monitor.events), 3):
        name = monitor.events[first][-1]
        expected = [f"agree on {name}", f"launch {name}", f"finish {name}"]
        assert monitor.events[first : first + 3] == expected


def test_a_handler_that_interrupts_a_local_launch_may_not_wait_for_workers(two, monitored):
    monitored(lambda: None)
    identity = monitoring.ProgramIdentity("read", "read")

    def interrupted():
        with pytest.raises(RuntimeError, match="signal handler"):
            launch.dispatch(lambda: 1, TwoProcesses(), identity=identity, reads_only=True)

    launch.dispatch(interrupted, two)
    assert launch.dispatch(lambda: 1, TwoProcesses(), identity=identity) == 1
