"""A call that fails ends at once, says why, and leaves everything as it was."""

import gc
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from replicas import local_ids, one_process

import stratagem as sg

pytestmark = pytest.mark.about("calls")


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


def at_once(call, error, match):
    start = time.monotonic()
    with pytest.raises(error, match=match) as raised:
        call()
    assert time.monotonic() - start < 10  # what waits for a replica that failed waits longer
    return raised


@pytest.mark.not_on("parameter_server2", reason="a server does not take updates back")
@one_process("workers that do different things are a fault of the cluster")
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

    raised = at_once(lambda: many.run(step), Boom, "of the user")
    assert any(entry.name == "step" for entry in raised.traceback)
    assert contents(many, variables) == before
    assert still_usable(many)


@pytest.mark.not_on("parameter_server2", reason="a server does not take updates back")
def test_an_exception_in_a_merge_call(many, variables):
    before = contents(many, variables)

    def merge(strategy):
        raise Boom("in merge")

    def step():
        update_all(variables)
        replica().merge_call(merge)

    at_once(lambda: many.run(step), Boom, "in merge")
    assert contents(many, variables) == before
    assert still_usable(many)


@one_process("workers that do different things are a fault of the cluster")
def test_replicas_that_disagree_on_a_collective(many):
    def step():
        if int(replica().replica_id_in_sync_group) == 0:
            return replica().all_reduce("SUM", 1.0)
        return replica().all_gather(jnp.ones(1), axis=0)

    at_once(
        lambda: many.run(step),
        RuntimeError,
        r"replica 0 is at all_reduce\(SUM\); replica 1 is at all_g",
    )
    assert still_usable(many)


@one_process("workers that do different things are a fault of the cluster")
def test_replicas_that_disagree_on_the_shape(many):
    def step():
        return replica().all_reduce("SUM", jnp.ones(int(replica().replica_id_in_sync_group)))

    at_once(lambda: many.run(step), ValueError, "same shape in every replica")
    assert still_usable(many)


@pytest.mark.not_on("parameter_server2", reason="a server does not take updates back")
@one_process("workers that do different things are a fault of the cluster")
def test_a_replica_that_returns_early(many, variables):
    before = contents(many, variables)

    def step():
        variables[1].assign_add(1.0)
        if int(replica().replica_id_in_sync_group) > 0:
            replica().merge_call(lambda strategy: None)

    at_once(lambda: many.run(step), RuntimeError, r"replica 0 returned; replica 1 is at merge_call")
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


@pytest.mark.layout
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
    # Workers where it did not happen are told.
    error = Boom if max(local_ids(many)) >= limit else RuntimeError
    with pytest.raises(error, match="in callback"):
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


@pytest.mark.not_on("parameter_server2", reason="a server does not take updates back")
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


@one_process("a worker that is interrupted gives up its cluster")
def test_an_interrupt_ends_an_eager_call_and_its_late_replica_changes_nothing(many, caplog):
    v = sg.Variable(1.0)
    started, interrupted, release, ended = (threading.Event() for _ in range(4))

    def step():
        started.set()
        release.wait(30)
        try:
            v.assign_add(1.0)
        finally:
            ended.set()

    def interrupt():
        started.wait(30)
        # Python notices a signal that comes just before a wait only with the next one.
        while not interrupted.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            interrupted.wait(5)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        many.run(step)
    interrupted.set()
    assert "It is abandoned, and ends when that returns" in caplog.text
    interrupter.join(30)
    release.set()
    assert ended.wait(30)
    for thread in threading.enumerate():
        if thread.name.startswith("replica-"):
            thread.join(30)
    assert float(v) == 1
    assert still_usable(many)


@one_process("a worker that is interrupted gives up its cluster")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # interrupted connections
def test_interrupts_of_compiled_steps_lose_nothing(many):
    """Arrays given away to a program are always replaced by its results."""
    with many.scope():
        made = [sg.Variable(jnp.zeros(4)) for _ in range(10)]

    @sg.function
    def step():
        for variable in made:
            variable.assign_add(jnp.ones(4))

    def interrupt(*_):
        raise KeyboardInterrupt

    step()
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts = 0
    try:
        while interrupts < 60:
            try:
                # Once only: under load another one could arrive in the handler below.
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                for _ in range(200):  # JAX swallows an interrupt now and then
                    step()
            except BaseException as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                # JAX's C++ code passes on an interrupt of its Python parts as an error.
                if not isinstance(error, KeyboardInterrupt) and "KeyboardInterrupt" not in str(
                    error
                ):
                    raise
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    step()
    counts = {float(variable.numpy()[0]) for variable in made}
    assert len(counts) == 1
    assert still_usable(many)
    gc.collect()  # while the warnings are ignored


@pytest.mark.not_on("parameter_server2", reason="a server does not take updates back")
def test_a_failure_around_a_run_takes_back_what_the_run_did(strategy):
    with strategy.scope():
        inner = sg.Variable(1.0, aggregation=sg.VariableAggregation.MEAN)

    @sg.function
    def step(x):
        strategy.run(lambda: inner.assign_add(jnp.float32(1)))
        raise Boom

    sg.config.run_functions_eagerly(True)
    try:
        with pytest.raises(Boom):
            step(1)
    finally:
        sg.config.run_functions_eagerly(False)
    assert float(inner) == 1


@pytest.mark.not_on("parameter_server2", reason="a server does not take updates back")
@one_process("workers that do different things are a fault of the cluster")
def test_results_that_cannot_be_merged_take_back_what_was_done(many, variables):
    before = contents(many, variables)

    def step():
        update_all(variables)
        return [1.0] * int(replica().replica_id_in_sync_group)

    at_once(lambda: many.run(step), RuntimeError, "same structure")
    assert contents(many, variables) == before


def test_the_default_strategy_takes_back_what_a_failed_run_did():
    v = sg.Variable(1.0)

    def step():
        v.assign_add(1.0)
        raise Boom

    with pytest.raises(Boom):
        sg.distribute.get_strategy().run(step)
    assert float(v) == 1


def test_callbacks_from_two_threads_lose_no_update(strategy):
    with strategy.scope():
        v = sg.Variable(0.0)

    @sg.function
    def step(x):
        jax.debug.callback(lambda x: None, x)
        v.assign_add(x)

    step(jnp.float32(1))
    threads = [
        threading.Thread(target=lambda: [step(jnp.float32(1)) for _ in range(20)]) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(v) == 61


@one_process("threads launch programs in another order in each worker")
def test_a_callback_may_read_variables_while_other_threads_step(many):
    with many.scope():
        v = sg.Variable(1.0)
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    ended = threading.Event()

    def replica_step():
        x = io_callback(lambda: np.float32(v.numpy()), shape)
        return replica().all_reduce("SUM", x)

    with_callback = sg.function(lambda: many.run(replica_step))
    other = sg.function(lambda: many.run(lambda: replica().all_reduce("SUM", v * 1)))
    other()

    def keep_stepping():
        while not ended.is_set():
            other()

    thread = threading.Thread(target=keep_stepping)
    thread.start()
    try:
        for _ in range(20):
            assert float(with_callback().values[0]) == many.num_replicas_in_sync
    finally:
        ended.set()
        thread.join()


@one_process("makes a strategy on devices of its own")
def test_a_callback_that_runs_a_program_is_told_not_to():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    values = strategy.run(lambda: jnp.ones(()))
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def replica_step():
        x = io_callback(lambda: np.float32(strategy.reduce("SUM", values, axis=None)), shape)
        return replica().all_reduce("SUM", x)

    with pytest.raises(RuntimeError, match="host callback"):
        sg.function(lambda: strategy.run(replica_step))()
    assert still_usable(strategy)


def test_an_error_of_a_callback_is_raised_once(strategy):
    calls = []

    def check(x):
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("of the user")

    @sg.function
    def step(x):
        jax.debug.callback(check, x)
        return x * 2

    for _ in range(2):
        step(jnp.float32(1))
    with pytest.raises(ValueError, match="of the user"):
        step(jnp.float32(1))
    assert len(calls) == 3
