"""What signal handlers of users may do while they interrupt a step."""

import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from handlers import for_a_while, on_signal, signals
from stratagem._src.core.errors import ContextError

SUM = {"aggregation": sg.VariableAggregation.SUM}


def make(kind):
    """Returns variables that a compiled step adds to alike, and that step."""
    if kind == "plain":
        variables = [sg.Variable(np.zeros(4, np.float32)) for _ in range(3)]
        return variables, sg.function(
            lambda: [v.assign_add(jnp.ones(4)) for v in variables] and None
        )
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    on_read = {"synchronization": sg.VariableSynchronization.ON_READ, **SUM}
    with strategy.scope():
        variables = [sg.Variable(np.zeros(4, np.float32), **o) for o in (SUM, SUM, on_read)]
        # Too large to be added up on the host: reading it runs a program.
        variables.append(sg.Variable(np.zeros(20_000, np.float32), **on_read))
        with sg.distribute.experimental.FullySharded(min_size=2):
            variables.append(sg.Variable(np.zeros(4, np.float32), **SUM))
    if kind == "mixed":
        variables.append(
            sg.Variable(np.zeros(4, np.float32))
        )  # is given to programs in another form

    def replica():
        for v in variables:
            v.assign_add(jnp.ones(v.shape))

    def run():
        strategy.run(replica)

    return variables, sg.function(run)


def contents(variables):
    return [float(np.asarray(v.read_value())[0]) for v in variables]


@pytest.mark.parametrize("kind", ["plain", "mirrored", "mixed"])
@pytest.mark.parametrize("reads_between", [False, True])
def test_reads_in_a_handler_are_all_before_or_all_after_the_step(kind, reads_between):
    variables, step = make(kind)
    step(), step(), step()
    seen = []

    def one():
        step()
        if reads_between:
            variables[
                0
            ].read_value()  # so that the next step copies this one and donates the others

    with signals(lambda: seen.append(contents(variables)), 0.003):
        for_a_while(one)
    assert seen
    assert [values for values in seen if len(set(values)) > 1] == []
    assert contents(variables)[0] >= seen[-1][0] > 0


@pytest.mark.parametrize("kind", ["plain", "mirrored", "mixed"])
def test_a_checkpoint_in_a_handler(kind, tmp_path):
    variables, step = make(kind)
    step(), step()
    checkpoint = sg.train.Checkpoint(variables=variables)
    paths = []
    with signals(lambda: paths.append(checkpoint.save(tmp_path / "saved")), 0.05):
        for_a_while(step)
    checkpoint.sync()
    assert len(paths) > 1
    for path in paths:
        checkpoint.restore(path)
        assert len(set(contents(variables))) == 1


def test_a_save_that_is_interrupted_by_a_handler_that_saves(tmp_path):
    variables, step = make("plain")
    step()
    outer, inner = (sg.train.Checkpoint(variables=variables) for _ in range(2))
    paths = [inner.save(tmp_path / "inner")]  # what it takes to save cannot be imported by halves
    inner.sync()
    with signals(lambda: paths.append(inner.save(tmp_path / "inner")), 0.02):
        for_a_while(lambda: (step(), paths.append(outer.save(tmp_path / "outer"))))
    for checkpoint in (outer, inner):
        checkpoint.sync()
    for path in paths[-10:]:
        outer.restore(path)
        assert len(set(contents(variables))) == 1


@pytest.mark.parametrize("kind", ["plain", "mirrored", "mixed"])
def test_steps_in_a_handler_work_or_say_why_not(kind):
    variables, step = make(kind)
    step(), step(), step()
    before = contents(variables)[0]
    ran, refused = 0, []

    def handler():
        nonlocal ran
        try:
            step()
            ran += 1
        except ContextError as error:
            refused.append(str(error))

    with signals(handler, 0.003):
        steps = for_a_while(step)
        refused_at_rest = len(refused)
    assert ran + refused_at_rest > 5
    assert all("Set a flag in the handler" in text for text in refused)
    each = 1 if kind == "plain" else 2
    assert set(contents(variables)) == {before + (steps + ran) * each}


def test_a_handler_that_interrupts_an_eager_run(tmp_path):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    on_read = {"synchronization": sg.VariableSynchronization.ON_READ, **SUM}
    with strategy.scope():
        used = [sg.Variable(np.zeros(4, np.float32), **o) for o in (SUM, on_read)]
        unused = sg.Variable(np.zeros(4, np.float32), **SUM)
    step = sg.function(lambda: (strategy.run(lambda: used[0].assign_add(jnp.ones(4))), None)[1])
    other = sg.function(lambda: (strategy.run(lambda: unused.assign_add(jnp.ones(4))), None)[1])
    step(), other()
    checkpoint = sg.train.Checkpoint(used=used)
    seen, refused = [], []

    def handler():
        seen.append(contents(used))
        seen.append(checkpoint.save(tmp_path / "saved"))
        other()
        for call in (step, lambda: used[1].assign(np.ones(4)), lambda: strategy.run(lambda: None)):
            with pytest.raises(ContextError, match="Set a flag in the handler") as raised:
                call()
            refused.append(raised)

    with on_signal(handler) as send:

        def replica():
            for v in used:
                v.assign_add(jnp.ones(4))
            if sg.distribute.get_replica_context().replica_id_in_sync_group == 0:
                send()
            used[0].assign_add(jnp.ones(4))

        strategy.run(replica)
    assert seen[0] == [2, 0]
    assert len(refused) == 3
    assert contents([*used, unused]) == [6, 2, 4]
    checkpoint.restore(seen[1])
    assert contents(used) == [2, 0]


def test_a_step_in_a_handler_runs_between_steps():
    variables, step = make("mirrored")
    step()
    with on_signal(step) as send:
        send()
    assert set(contents(variables)) == {4}


def test_a_step_in_a_handler_that_interrupts_the_first_one_while_it_compiles(monkeypatch):
    variables, step = make("plain")
    compile_it, sent = jax.stages.Lowered.compile, []

    def compile_and_signal(lowered, *args, **kwargs):
        if not sent:
            sent.append(None)
            send()
        return compile_it(lowered, *args, **kwargs)

    def give_up(*_):
        raise TimeoutError("the handler waits for the call that it interrupts")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    try:
        with on_signal(step) as send:
            monkeypatch.setattr(jax.stages.Lowered, "compile", compile_and_signal)
            step()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert sent
    assert set(contents(variables)) == {2}


@pytest.mark.parametrize("kind", ["plain", "mirrored", "mixed"])
def test_reads_in_a_handler_that_interrupts_a_trace(kind):
    """The handler reads values, and the trace does not notice it."""
    variables, step = make(kind)
    step()
    seen, count, added = [], 1, contents(variables)[0]

    def read():
        seen.append([float(v.numpy().ravel()[0]) for v in variables])
        assert not any(isinstance(v.read_value(), jax.core.Tracer) for v in variables)

    def trace_anew():
        nonlocal count
        # A new function, in which the handler and the function read the same variables.
        sg.function(lambda: (step(), variables[0].read_value() + jnp.ones(4)))()
        jax.jit(lambda x: jnp.sin(x) + count)(1.0)
        count += 1

    with signals(read, 0.003):
        for_a_while(trace_anew)
    assert seen
    assert [values for values in seen if len(set(values)) > 1] == []
    assert contents(variables) == [count * added] * len(variables)


@pytest.mark.parametrize("kind", ["plain", "mirrored", "mixed"])
def test_saves_in_a_handler_that_interrupts_a_trace(kind, tmp_path):
    """The checkpoint has the values before the call, and the trace does not notice the save."""
    variables, step = make(kind)
    step()
    added, calls = contents(variables)[0], 0
    checkpoint = sg.train.Checkpoint(variables=variables)
    paths = [checkpoint.save(tmp_path / "saved")]

    def trace_anew():
        nonlocal calls
        sg.function(lambda: (step(), variables[0].read_value() + jnp.ones(4)))()
        calls += 1

    with signals(lambda: paths.append(checkpoint.save(tmp_path / "saved")), 0.03):
        for_a_while(trace_anew)
    checkpoint.sync()
    assert contents(variables) == [(calls + 1) * added] * len(variables)
    assert len(paths) > 1
    for path in paths:
        checkpoint.restore(path)
        assert len(set(contents(variables))) == 1


def test_reads_in_a_handler_that_interrupts_the_same_read():
    """JAX is making what the handler needs: the pieces of an array, or the program that adds them up."""
    variables, step = make("mirrored")
    step()
    seen = []
    handler = on_signal(lambda: seen.append([float(v.numpy().ravel()[0]) for v in variables]))

    def profile(frame, event, _):
        if event == "call" and "/jax/" in frame.f_code.co_filename:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)
            sys.setprofile(profile)

    with handler:
        for _ in range(3):
            step()
            sys.setprofile(profile)
            try:
                mine = [float(v.numpy().ravel()[0]) for v in variables]
            finally:
                sys.setprofile(None)
            assert len(set(mine)) == 1
    assert len(seen) > 20
    assert [values for values in seen if len(set(values)) > 1] == []
