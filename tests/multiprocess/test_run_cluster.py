"""``run_cluster``: results, failures and deadlines of functions in real processes."""

import os
import signal
import sys
import threading
import time

import pytest
from task_functions import NotReadableError, fail_in_worker_1, task

from stratagem._src.cluster import Task
from stratagem._src.cluster.errors import LaunchError
from stratagem.testing import ClusterTestError, run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]


def test_results_in_order_of_the_tasks():
    results = run_cluster(task, workers=1, chief=True, evaluator=True)
    assert results == [("chief", 0), ("worker", 0), ("evaluator", 0)]


def test_arguments_closures_environment_and_devices():
    factor = 3

    def fn(x, *, y):
        return x * factor + y, os.environ["HELLO"], os.environ["JAX_NUM_CPU_DEVICES"]

    results = run_cluster(fn, 1, (2,), {"y": 1}, devices_per_worker=4, env={"HELLO": "world"})
    assert results == [(7, "world", "4")]


def test_servers_are_ended_when_the_chief_is_done():
    def fn():
        if task()[0] != "chief":
            signal.pause()
        return "done"

    assert run_cluster(fn, workers=1, chief=True, ps=1) == ["done", None, None]


def test_failure_carries_the_task_the_exception_and_its_traceback():
    began = time.monotonic()
    with pytest.raises(ClusterTestError, match="worker 1 is broken") as caught:
        run_cluster(fail_in_worker_1)
    assert time.monotonic() - began < 30
    [failure] = caught.value.failures
    assert failure.task == Task("worker", 1)
    assert isinstance(failure.exception, ValueError)
    assert "in fail_in_worker_1" in failure.traceback
    assert failure.exit_code == 1


def test_every_failed_task_is_reported():
    def fn():
        raise KeyError(task()[1])

    # They may be too quick for one another to be ended.
    with pytest.raises(ClusterTestError) as caught:
        run_cluster(fn, workers=2)
    assert {f.exception.args[0] for f in caught.value.failures} <= {0, 1}


def test_exception_that_cannot_be_unpickled_keeps_its_traceback():
    def fn():
        raise NotReadableError("one", "two")

    with pytest.raises(ClusterTestError, match="raised NotReadableError") as caught:
        run_cluster(fn, workers=1)
    assert caught.value.failures[0].exception is None
    assert "NotReadableError: one" in caught.value.failures[0].traceback


def test_result_that_cannot_be_pickled_is_a_failure():
    with pytest.raises(ClusterTestError, match="cannot pickle"):
        run_cluster(threading.Lock, workers=1)


@pytest.mark.parametrize(
    ("number", "summary", "code"),
    [
        (signal.SIGKILL, "was killed by SIGKILL", 137),
        (signal.SIGSEGV, "was killed by SIGSEGV", 139),
    ],
)
def test_death_is_a_failure(number, summary, code):
    def fn():
        if task() == ("worker", 1):
            os.kill(os.getpid(), number)
        signal.pause()

    with pytest.raises(ClusterTestError, match=summary) as caught:
        run_cluster(fn, workers=2)
    [failure] = caught.value.failures
    assert (failure.task, failure.exit_code) == (Task("worker", 1), code)


def test_leaving_without_a_result_is_a_failure():
    with pytest.raises(ClusterTestError, match="exited before the function returned"):
        run_cluster(lambda: sys.exit(0), workers=1)


def test_deadline_shows_where_every_late_task_is():
    def fn():
        if task()[1] == 0:
            return
        if task()[1] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        waiting_for_godot()

    def waiting_for_godot():
        signal.pause()

    with pytest.raises(ClusterTestError, match=r"was not done after 5 s") as caught:
        run_cluster(fn, workers=3, timeout=5)
    late = {failure.task.task_id: failure.traceback for failure in caught.value.failures}
    assert sorted(late) == [1, 2]
    assert "in waiting_for_godot" in late[2]


def test_interrupted_caller_leaves_nothing_behind():
    timer = threading.Timer(1.0, signal.pthread_kill, (threading.main_thread().ident, 2))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_cluster(signal.pause, workers=2)
    timer.join()


def test_runs_in_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.extend(run_cluster(task, workers=1)))
    thread.start()
    thread.join(20)
    assert results == [("worker", 0)]


def test_wrong_numbers_are_rejected():
    with pytest.raises(LaunchError, match="workers must be"):
        run_cluster(task, workers=-1)
    with pytest.raises(LaunchError, match="at least 1, got 0"):
        run_cluster(task, workers=1, devices_per_worker=0)


def test_jax_across_processes():
    def fn():
        import jax
        import jax.numpy as jnp
        from jax.sharding import Mesh, PartitionSpec

        from stratagem._src.cluster import resolve_cluster

        resolver = resolve_cluster().resolver
        jax.distributed.initialize(
            resolver.coordinator_address, resolver.num_processes, resolver.process_id
        )
        mesh = Mesh(jax.devices(), ("replica",))

        @jax.jit
        def total():
            def replica():
                return jax.lax.psum(1 + jax.lax.axis_index("replica"), "replica")

            return jax.shard_map(
                replica, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False
            )() + jnp.zeros(())

        return jax.process_index(), jax.device_count(), float(total().addressable_data(0))

    assert run_cluster(fn, workers=2, devices_per_worker=2) == [(0, 4, 10.0), (1, 4, 10.0)]
