"""A call that fails ends at once, says why, and leaves everything as it was."""

import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import stratagem as sg


def replica():
    return sg.distribute.get_replica_context()


class Boom(Exception):
    pass


@pytest.fixture
def variables(many):
    options = {"aggregation": sg.VariableAggregation.SUM}
    with many.scope():
        made = [
            sg.Variable(1.0, **options),
            sg.Variable(1.0, synchronization=sg.VariableSynchronization.ON_READ, **options),
        ]
    made.append(sg.Variable(1.0))
    many.run(lambda: update_all(made))  # so that no compilation counts when a test takes the time
    return made


def update_all(variables):
    for variable in variables:
        variable.assign_add(jnp.float32(1))


def contents(many, variables):
    return [[float(c) for c in many.experimental_local_results(v)] for v in variables]


def still_usable(many):
    result = many.run(lambda: replica().all_reduce("SUM", 1.0))
    return float(result.values[0]) == many.num_replicas_in_sync


def within_a_second(call, error, match):
    start = time.monotonic()
    with pytest.raises(error, match=match) as raised:
        call()
    assert time.monotonic() - start < 1.0
    return raised


@pytest.mark.parametrize("culprit", ["first", "last"])
@pytest.mark.parametrize("before_meeting", [True, False])
def test_an_exception_in_one_replica(many, variables, culprit, before_meeting):
    before = contents(many, variables)
    index = 0 if culprit == "first" else many.num_replicas_in_sync - 1

    def step():
        if before_meeting:
            update_all(variables[1:])
        else:
            update_all(variables)
        if int(replica().replica_id_in_sync_group) == index:
            raise Boom("of the user")
        replica().all_reduce("SUM", 1.0)

    raised = within_a_second(lambda: many.run(step), Boom, "of the user")
    assert any(entry.name == "step" for entry in raised.traceback)
    assert contents(many, variables) == before
    assert still_usable(many)


def test_an_exception_in_a_merge_call(many, variables):
    before = contents(many, variables)

    def merge(strategy):
        raise Boom("in merge")

    def step():
        update_all(variables)
        replica().merge_call(merge)

    within_a_second(lambda: many.run(step), Boom, "in merge")
    assert contents(many, variables) == before
    assert still_usable(many)


def test_replicas_that_disagree_on_a_collective(many):
    def step():
        if int(replica().replica_id_in_sync_group) == 0:
            return replica().all_reduce("SUM", 1.0)
        return replica().all_gather(jnp.ones(1), axis=0)

    within_a_second(
        lambda: many.run(step),
        RuntimeError,
        r"replica 0 is at all_reduce\(SUM\); replica 1 is at all_g",
    )
    assert still_usable(many)


def test_replicas_that_disagree_on_the_shape(many):
    def step():
        return replica().all_reduce("SUM", jnp.ones(int(replica().replica_id_in_sync_group)))

    within_a_second(lambda: many.run(step), ValueError, "same shape in every replica")
    assert still_usable(many)


def test_a_replica_that_returns_early(many, variables):
    before = contents(many, variables)

    def step():
        variables[1].assign_add(1.0)
        if int(replica().replica_id_in_sync_group) > 0:
            replica().merge_call(lambda strategy: None)

    within_a_second(
        lambda: many.run(step), RuntimeError, r"replica 0 returned; replica 1 is at merge_call"
    )
    assert contents(many, variables) == before
    assert still_usable(many)


def test_an_exception_while_tracing(many, variables):
    before = contents(many, variables)

    @sg.function
    def step():
        many.run(lambda: update_all(variables))
        raise Boom("while tracing")

    for _ in range(2):
        with pytest.raises(Boom):
            step()
    assert contents(many, variables) == before
    assert still_usable(many)


@pytest.mark.parametrize("kind", ["pure", "io", "debug"])
def test_an_exception_in_a_host_callback_of_one_replica(many, variables, kind):
    """XLA would wait for the failed device and abort the process after 40 seconds."""
    before = contents(many, variables)

    def check(x):
        if x >= limit:
            raise Boom("in callback")
        return np.float32(x)

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    callbacks = {
        "pure": lambda x: jax.pure_callback(check, shape, x),
        "io": lambda x: io_callback(check, shape, x),
        "debug": lambda x: (jax.debug.callback(lambda x: check(x) and None, x), x)[1],
    }

    def replica_step():
        x = replica().replica_id_in_sync_group.astype(jnp.float32)
        y = callbacks[kind](x)
        update_all(variables)
        return replica().all_reduce("SUM", y)

    step = sg.function(lambda: many.run(replica_step))
    limit = 1
    within_ten = time.monotonic()
    with pytest.raises(Boom, match="in callback"):
        step()
    assert time.monotonic() - within_ten < 10
    assert contents(many, variables) == before
    limit = 100
    result = step()
    assert float(result.values[0]) == sum(range(many.num_replicas_in_sync))
    assert contents(many, variables) != before
    assert still_usable(many)


def test_checks_for_nan_leave_variables_alone(many, variables):
    before = contents(many, variables)

    @sg.function
    def step(x):
        many.run(lambda: update_all(variables))
        return jnp.log(x)

    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        step(jnp.float32(-1))
    assert contents(many, variables) == before


def test_an_eagerly_run_function_is_rolled_back(strategy):
    with strategy.scope():
        v = sg.Variable(1.0)

    @sg.function
    def step():
        v.assign_add(1.0)
        raise Boom

    sg.config.run_functions_eagerly(True)
    try:
        with pytest.raises(Boom):
            step()
    finally:
        sg.config.run_functions_eagerly(False)
    assert float(v) == 1


def test_an_interrupt_ends_an_eager_call_and_its_late_replica_changes_nothing(many):
    v = sg.Variable(1.0)
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def step():
        started.set()
        release.wait(30)
        try:
            v.assign_add(1.0)
        finally:
            ended.set()

    def interrupt():
        started.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        many.run(step)
    interrupter.join(30)
    release.set()
    assert ended.wait(30)
    for thread in threading.enumerate():
        if thread.name.startswith("replica-"):
            thread.join(30)
    assert float(v) == 1
    assert still_usable(many)
