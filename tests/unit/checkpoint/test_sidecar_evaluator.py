"""An evaluator beside a training job."""

import logging
import shutil
import threading
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

import stratagem as sg


def save(directory, *values):
    v = sg.Variable(0.0)
    step = sg.Variable(0)
    checkpoint = sg.train.Checkpoint(model=v, step=step, other=sg.Variable(5.0))
    for value in values:
        v.assign(value)
        step.assign(int(value) * 100)
        path = checkpoint.save(directory / "ckpt")
    checkpoint.sync()
    return path


def scalars_in(directory):
    for path in directory.glob("events*"):
        for record in sg.data.TFRecordDataset(str(path)):
            event = Event.FromString(record)
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value


def test_every_new_checkpoint_is_evaluated_while_training_goes_on(tmp_path):
    v, step = sg.Variable(0.0), sg.Variable(0)
    trained = threading.Thread(target=save, args=(tmp_path / "train", 1.0))
    remaining = iter([2.0, 3.0])

    def evaluate():
        value = next(remaining, None)
        if value is not None:  # meanwhile the next one is saved
            save(tmp_path / "train", value)
        return {"square": v * v, "cube": v**3}

    trained.start()
    found = sg.train.SidecarEvaluator(
        evaluate,
        sg.train.Checkpoint(model=v, step=step),
        tmp_path / "train",
        log_dir=tmp_path / "eval",
        step=step,
        max_evaluations=3,
        timeout=60,
    ).start()
    trained.join()
    assert found == {n * 100: {"square": n**2, "cube": n**3} for n in (1, 2, 3)}
    assert sorted(scalars_in(tmp_path / "eval")) == sorted(
        (name, n * 100, n**power) for n in (1, 2, 3) for name, power in (("square", 2), ("cube", 3))
    )


def test_a_checkpoint_that_is_removed_meanwhile_is_left_out(tmp_path, caplog):
    save(tmp_path, 1.0)
    v = sg.Variable(0.0)
    checkpoint = sg.train.Checkpoint(model=v)
    restore = checkpoint.restore

    def remove_and_restore(path, options=None):
        if path.endswith("ckpt-1"):
            save(tmp_path, 2.0)
            shutil.rmtree(path)
        return restore(path, options)

    object.__setattr__(checkpoint, "restore", remove_and_restore)
    with caplog.at_level(logging.WARNING, "stratagem"):
        found = sg.train.SidecarEvaluator(
            lambda: {"v": v}, checkpoint, tmp_path, max_evaluations=1, timeout=60
        ).start()
    assert found == {2: {"v": 2.0}}
    assert ": it was removed meanwhile" in caplog.text


def test_a_damaged_checkpoint_is_left_out_and_said(tmp_path, caplog):
    path = save(tmp_path, 1.0)
    for file in Path(path).rglob("*"):
        if file.is_file() and "METADATA" not in file.name:
            file.write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "stratagem"):
        found = sg.train.SidecarEvaluator(
            dict, sg.train.Checkpoint(model=sg.Variable(0.0)), tmp_path, timeout=0.0
        ).start()
    assert found == {}
    assert ": it cannot be read" in caplog.text


def test_objects_that_do_not_fit_are_an_error(tmp_path):
    save(tmp_path, 1.0)
    evaluator = sg.train.SidecarEvaluator(
        dict, sg.train.Checkpoint(model=sg.Variable([1.0, 2.0])), tmp_path, timeout=0.0
    )
    with pytest.raises(ValueError, match="model"):
        evaluator.start()


def test_it_ends_when_nothing_comes(tmp_path):
    asked = []

    def give_up():
        asked.append(1)
        return len(asked) == 2

    evaluator = sg.train.SidecarEvaluator(
        dict, sg.train.Checkpoint(), tmp_path, timeout=0.01, timeout_fn=give_up
    )
    assert evaluator.start() == {}
    assert len(asked) == 2


def test_no_evaluations_are_refused(tmp_path):
    with pytest.raises(ValueError, match="max_evaluations must be at least 1, got 0"):
        sg.train.SidecarEvaluator(dict, sg.train.Checkpoint(), tmp_path, max_evaluations=0)
