"""``CheckpointManager``, and the places where checkpoints are found."""

import os
import threading
import time

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.checkpoint import async_save
from stratagem._src.checkpoint.format import directories
from stratagem._src.checkpoint.format.array_store import ArrayWriter
from stratagem._src.process.background import Background

AT_ONCE = sg.train.CheckpointOptions(enable_async=False)


def names(paths):
    return [path.rpartition("/")[2] for path in paths]


def make(directory, value=0.0, **options):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(value))
    return checkpoint, sg.train.CheckpointManager(checkpoint, directory, **options)


def test_only_the_last_are_kept(tmp_path):
    checkpoint, manager = make(tmp_path, max_to_keep=2)
    assert (manager.checkpoints, manager.latest_checkpoint) == ([], None)
    paths = [manager.save() for _ in range(4)]
    assert manager.checkpoints == paths[2:]
    assert manager.latest_checkpoint == sg.train.latest_checkpoint(tmp_path) == paths[3]
    assert sorted(os.listdir(tmp_path)) == ["ckpt-3", "ckpt-4"]
    # Another program goes on with them.
    checkpoint, manager = make(tmp_path, max_to_keep=2)
    assert manager.restore_or_initialize() == paths[3]
    assert int(checkpoint.save_counter) == 4
    assert names([manager.save()]) == ["ckpt-5"]
    assert names(manager.checkpoints) == ["ckpt-4", "ckpt-5"]


def test_all_are_kept(tmp_path):
    _, manager = make(tmp_path, max_to_keep=None, checkpoint_name="model")
    for _ in range(3):
        manager.save()
    assert names(manager.checkpoints) == ["model-1", "model-2", "model-3"]
    # What is called otherwise is not its own.
    _, other = make(tmp_path, max_to_keep=1)
    other.save()
    assert names(other.checkpoints) == ["ckpt-1"]
    assert len(manager.checkpoints) == 3


def test_some_are_kept_for_good(tmp_path):
    _, manager = make(tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=1)
    begun = time.time()
    for hours in (0.2, 0.9, 1.1, 1.5, 2.0, 2.2, 2.3):
        path = manager.save()
        manager.sync()
        later = begun + hours * 3600
        os.utime(f"{path}/_METADATA", (later, later))
    # The one of 1.1 is the first an hour after the beginning, 2.2 the next.
    assert names(manager.checkpoints) == ["ckpt-7"]
    found = sorted(name for name in os.listdir(tmp_path) if not name.startswith("."))
    assert found == ["ckpt-3", "ckpt-6", "ckpt-7"]
    _, again = make(tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=1)
    again.restore_or_initialize()
    again.save()
    again.sync()
    found = sorted(name for name in os.listdir(tmp_path) if not name.startswith("."))
    assert found == ["ckpt-3", "ckpt-6", "ckpt-8"]


def test_the_latest_is_the_last_saved_though_the_clock_was_set_back(tmp_path):
    _, manager = make(tmp_path, max_to_keep=1)
    future = time.time() + 3600
    os.utime(f"{manager.save(7, options=AT_ONCE)}/_METADATA", (future, future))
    path = manager.save(3)
    assert manager.checkpoints == [path]
    assert sg.train.latest_checkpoint(tmp_path) == path == f"{tmp_path}/ckpt-3"


def test_numbers_of_the_program(tmp_path):
    checkpoint, manager = make(tmp_path, max_to_keep=3)
    step = sg.Variable(100)
    assert names([manager.save(step)]) == ["ckpt-100"]
    assert int(checkpoint.save_counter) == 100
    checkpoint.v.assign(5.0)
    path = manager.save(checkpoint_number=100)  # in its place
    assert names([path]) == ["ckpt-100"]
    assert names(manager.checkpoints) == ["ckpt-100"]
    checkpoint.v.assign(0.0)
    checkpoint.restore(path)
    assert float(checkpoint.v) == 5
    assert names([manager.save()]) == ["ckpt-101"]
    manager.sync()
    assert sorted(os.listdir(tmp_path)) == ["ckpt-100", "ckpt-101"]


def test_an_interval_of_steps(tmp_path):
    step = sg.Variable(0)
    checkpoint = sg.train.Checkpoint(step=step)

    def make_manager():
        return sg.train.CheckpointManager(
            checkpoint, tmp_path, max_to_keep=9, step_counter=step, checkpoint_interval=3
        )

    manager = make_manager()
    assert manager.checkpoint_interval == 3
    saved = []
    for _ in range(8):
        step.assign_add(1)
        if manager.save() is not None:
            saved.append(int(step))
    assert saved == [1, 4, 7]
    assert manager.save(check_interval=False) is not None
    manager = make_manager()
    manager.restore_or_initialize()
    step.assign_add(2)
    assert manager.save() is None
    step.assign_add(1)
    assert manager.save() is not None
    for wrong in ({"step_counter": step}, {"checkpoint_interval": 3}):
        with pytest.raises(ValueError, match="step_counter"):
            sg.train.CheckpointManager(checkpoint, tmp_path, 1, **wrong)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        sg.train.CheckpointManager(checkpoint, tmp_path, 0)


def test_what_begins_without_a_checkpoint(tmp_path):
    calls = []
    checkpoint, manager = make(tmp_path, max_to_keep=1, init_fn=lambda: calls.append(1))
    assert manager.restore_or_initialize() is None
    assert calls == [1]
    path = manager.save()
    checkpoint.v.assign(3.0)
    assert manager.restore_or_initialize() == path
    assert (calls, float(checkpoint.v)) == ([1], 0)


def test_write_and_read_have_no_numbers(tmp_path):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0))
    assert checkpoint.write(tmp_path / "best") == str(tmp_path / "best")
    checkpoint.v.assign(2.0)
    assert checkpoint.write(tmp_path / "best") == str(tmp_path / "best")
    checkpoint.v.assign(0.0)
    checkpoint.read(tmp_path / "best").assert_consumed()
    assert float(checkpoint.v) == 2
    assert int(checkpoint.save_counter) == 0
    numbered = checkpoint.save(tmp_path / "ckpt")
    other = sg.train.Checkpoint(v=sg.Variable(0.0))
    other.read(numbered)
    assert int(other.save_counter) == 0
    other.restore(numbered)
    assert int(other.save_counter) == 1
    assert sorted(os.listdir(tmp_path)) == ["best", "ckpt-1"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_one_is_replaced_at_one_moment(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:

        def cannot(new, old):
            raise OSError("not here")

        monkeypatch.setattr("stratagem._src.checkpoint.format.directories._rename_exchange", cannot)
    for number in range(2):
        new = directories.NewDirectory(tmp_path / "one", replace=True)
        (new.hidden / "file").write_text(str(number))
        new.publish({}, time.time_ns())
        assert (tmp_path / "one" / "file").read_text() == str(number)
        assert os.listdir(tmp_path) == ["one"]


# --- beside the program -----------------------------------------------------------------------------


def test_the_program_goes_on_while_it_is_written(tmp_path, monkeypatch):
    may_finish = threading.Event()
    finish = ArrayWriter.finish

    def finish_late(self):
        assert may_finish.wait(100)
        return finish(self)

    monkeypatch.setattr(ArrayWriter, "finish", finish_late)
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = sg.Variable(np.zeros(1000, np.float32), aggregation=sg.VariableAggregation.MEAN)
    step = sg.function(lambda: strategy.run(lambda: v.assign(v + 1.0)))
    step()
    checkpoint = sg.train.Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "ckpt")
    for _ in range(3):
        step()  # takes over the memory of a value that nobody needs any more
    assert not os.path.exists(path)
    may_finish.set()
    checkpoint.restore(path)
    assert (v.numpy() == 1).all()


def test_the_program_may_change_its_directory_while_it_is_written(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0))
    finish = ArrayWriter.finish

    def finish_elsewhere(self):
        os.chdir(elsewhere)
        return finish(self)

    monkeypatch.setattr(ArrayWriter, "finish", finish_elsewhere)
    assert checkpoint.save("ckpt") == "ckpt-1"
    checkpoint.sync()
    assert {path.name for path in tmp_path.iterdir()} == {"ckpt-1", "elsewhere"}


def test_another_thread_may_look_for_checkpoints_at_the_moment_a_save_begins(tmp_path, monkeypatch):
    found = []

    class LookedForInBetween(Background):
        def start(self, *args, **kwargs):
            look.start()
            look.join(0.2)  # it comes in between, or waits until the save has begun
            return super().start(*args, **kwargs)

    look = threading.Thread(target=lambda: found.append(sg.train.latest_checkpoint(tmp_path)))
    monkeypatch.setattr(async_save, "Background", LookedForInBetween)
    path = sg.train.Checkpoint(v=sg.Variable(1.0)).save(tmp_path / "ckpt")
    look.join(100)
    assert found == [path]


def test_an_evaluator_sees_each_new_checkpoint(tmp_path):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0))
    assert list(sg.train.checkpoints_iterator(tmp_path / "later", timeout=0.1)) == []
    checkpoint.save(tmp_path / "ckpt")
    paths = []
    for path in sg.train.checkpoints_iterator(tmp_path, timeout=0.2):
        paths.append(path)
        if len(paths) < 3:
            for _ in range(2):  # between the two nobody looks
                checkpoint.save(tmp_path / "ckpt")
    assert names(paths) == ["ckpt-1", "ckpt-3", "ckpt-5"]
    calls = []

    def is_over():
        calls.append(1)
        return len(calls) == 3

    found = sg.train.checkpoints_iterator(tmp_path, timeout=0.01, timeout_fn=is_over)
    assert names(found) == ["ckpt-5"]
    assert len(calls) == 3
