"""What a handler of preemption does in one process; many processes are in ``tests/multiprocess``."""

import os
import signal
import sys
import time

import pytest

import stratagem as sg
from stratagem._src.process.signal_queue import SignalQueue
from stratagem._src.training.termination_config import TerminationConfig

Handler = sg.distribute.experimental.PreemptionCheckpointHandler


@pytest.fixture
def step():
    return sg.Variable(0)


def notice(handler, number=signal.SIGTERM):
    """Sends a signal and waits until it has been passed on."""
    os.kill(os.getpid(), number)
    poll(lambda: handler._stop._is_requested)


def poll(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def run_on(handler):
    for _ in range(2000):
        handler.run(time.sleep, 0.01)


def made(step, directory, **config):
    return Handler(
        None, sg.train.Checkpoint(step=step), str(directory), TerminationConfig(**config)
    )


@pytest.mark.parametrize("way", ["run", "after", "scope"])
def test_saves_and_leaves_at_the_next_step_and_goes_on_from_there(step, tmp_path, way):
    def take_step(handler):
        if way == "run":
            assert handler.run(lambda x: int(step.assign_add(x)), x=1) == int(step)
        elif way == "after":
            step.assign_add(1)
            handler.save_checkpoint_if_preempted()
        else:
            with handler.watch_preemption_scope():
                step.assign_add(1)

    handler = made(step, tmp_path)
    for _ in range(3):
        take_step(handler)
    assert not list(tmp_path.iterdir())
    notice(handler)
    with pytest.raises(SystemExit) as exit_:
        take_step(handler)
    assert exit_.value.code == 42
    done = int(step)
    assert done == (4 if way == "after" else 3)
    step.assign(99)
    again = made(step, tmp_path)
    assert (again.total_run_calls, int(step)) == (done, done)
    take_step(again)
    assert again.total_run_calls == done + 1


def test_exit_fn_may_return_and_save_fn_saves_instead(step, tmp_path):
    calls = []
    handler = made(
        step, tmp_path, exit_fn=lambda: calls.append("exit"), save_fn=lambda *a: calls.append(a)
    )
    for name in ("first", "second"):
        notice(handler)
        handler.save_checkpoint_if_preempted(name)
        handler.save_checkpoint_if_preempted("not this one")
    assert calls == [("first",), "exit", ("second",), "exit"]
    assert not list(tmp_path.iterdir())


def test_the_interval_of_a_manager_does_not_hold_up_the_last_save(step, tmp_path):
    checkpoint = sg.train.Checkpoint(step=step)
    manager = sg.train.CheckpointManager(
        checkpoint, tmp_path, max_to_keep=3, step_counter=step, checkpoint_interval=1000
    )
    handler = Handler(None, manager)
    handler.run(step.assign_add, 1)
    manager.save()
    handler.run(step.assign_add, 1)
    notice(handler)
    with pytest.raises(SystemExit):
        handler.run(step.assign_add, 1)
    assert len(manager.checkpoints) == 2
    # What the program saves itself knows the number of steps too.
    for path, runs in zip(manager.checkpoints, (1, 2), strict=True):
        checkpoint.restore(path)
        assert checkpoint.checkpointed_runs == runs


def test_with_a_grace_period_it_saves_twice(step, tmp_path):
    ends = []
    handler = made(step, tmp_path, grace_period=2.0, exit_fn=lambda: ends.append(int(step)))
    handler.run(step.assign_add, 1)  # compiles, which could outlast the grace period
    notice(handler)
    begun = time.monotonic()
    while not ends:
        handler.run(step.assign_add, 1)
        assert time.monotonic() - begun < 60
    assert ends[0] > 2
    assert [path.name for path in tmp_path.glob("ckpt-*")] == ["ckpt-2"]


def test_a_function_is_asked_for_notices(step, tmp_path):
    asked = []
    handler = made(step, tmp_path, termination_watcher_fn=lambda: asked.append(1) or len(asked) > 1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(SystemExit):
        run_on(handler)
    assert len(asked) == 2


def test_what_such_a_function_raises_is_raised(step, tmp_path):
    def fails():
        raise ValueError("no metadata server")

    handler = made(step, tmp_path, termination_watcher_fn=fails)
    with pytest.raises(ValueError, match="no metadata server"):
        run_on(handler)


def test_signals_do_what_they_did_before_when_the_handler_is_gone(step, tmp_path):
    got = []
    before = signal.signal(signal.SIGUSR2, lambda *_: got.append("mine"))
    try:
        handler = made(step, tmp_path, signals=[signal.SIGUSR2])
        notice(handler, signal.SIGUSR2)
        assert got == []
        del handler
        os.kill(os.getpid(), signal.SIGUSR2)
        poll(lambda: got == ["mine"])
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_slurm_announces_by_other_signals(monkeypatch):
    assert TerminationConfig().signals_to_watch() == [signal.SIGTERM]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    both = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
    assert TerminationConfig().signals_to_watch() == both
    mine = SignalQueue([signal.SIGUSR1])
    assert TerminationConfig().signals_to_watch() == [signal.SIGTERM, signal.SIGUSR2]
    mine.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Handler(None, sg.train.Checkpoint()), "A Checkpoint needs checkpoint_dir"),
        (lambda: Handler(None, "here", "there"), "Checkpoint or a CheckpointManager"),
        (lambda: Handler(None, sg.train.Checkpoint(), "x", 42), "must be a TerminationConfig"),
        (lambda: TerminationConfig(exit_fn=42), "exit_fn must be a function"),
        (lambda: TerminationConfig(grace_period=-1), "at least 0"),
        (lambda: TerminationConfig(print, signals=[15]), "replaces signals"),
    ],
)
def test_wrong_use_is_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_workers_must_have_joined(step, tmp_path):
    spec = sg.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(spec, "worker", 0)
    with pytest.raises(RuntimeError, match="Create the MultiWorkerMirroredStrategy before"):
        Handler(resolver, sg.train.Checkpoint(step=step), str(tmp_path))


def test_the_default_exit_code_is_tensorflows():
    with pytest.raises(SystemExit) as exit_:
        TerminationConfig().leave()
    assert exit_.value.code == 42
    with pytest.raises(SystemExit) as exit_:
        TerminationConfig(exit_fn=lambda: sys.exit(3)).leave()
    assert exit_.value.code == 3
