"""What is in the files that TensorBoard reads."""

import io
import struct
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import Event

import stratagem as sg
from stratagem._src.telemetry.measurement.recorder import begin_recording, end_recording


def events_in(directory):
    for path in sorted(directory.glob("events*")):
        for record in sg.data.TFRecordDataset(str(path)):
            yield Event.FromString(record)


def values_in(directory):
    return [(event.step, value) for event in events_in(directory) for value in event.summary.value]


def scalars_in(directory):
    return [(step, value.tag, value.simple_value) for step, value in values_in(directory)]


@pytest.fixture
def writer(tmp_path):
    writer = sg.summary.create_file_writer(tmp_path)
    yield writer
    writer.close()


def test_a_file_begins_with_the_version_that_tensorboard_asks_for(writer, tmp_path):
    with writer.as_default():
        sg.summary.scalar("loss", 0.5, step=1)
    first = next(events_in(tmp_path))
    assert first.file_version == "brain.Event:2"


def test_no_file_before_the_first_summary(writer, tmp_path):
    with writer.as_default(step=1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_steps_come_from_the_call_the_block_or_the_thread(writer, tmp_path):
    counter = sg.Variable(30)
    with writer.as_default(step=10):
        sg.summary.scalar("a", 1.0)
        sg.summary.scalar("a", 2.0, step=20)
        sg.summary.experimental.set_step(counter)
        sg.summary.scalar("a", 3.0)
        counter.assign_add(1)
        sg.summary.scalar("a", 4.0)
    assert scalars_in(tmp_path) == [(10, "a", 1.0), (20, "a", 2.0), (30, "a", 3.0), (31, "a", 4.0)]
    assert sg.summary.experimental.get_step() is None


def test_a_summary_without_a_step_is_refused(writer):
    with writer.as_default(), pytest.raises(ValueError, match="'loss' has no step"):
        sg.summary.scalar("loss", 1.0)


def test_without_a_writer_nothing_is_recorded():
    assert sg.summary.scalar("loss", 1.0) is False
    assert sg.summary.should_record_summaries() is False


def test_a_compiled_step_records_each_time(writer, tmp_path):
    counter = sg.Variable(0)

    @sg.function
    def step(x):
        counter.assign_add(1)
        with sg.summary.record_if(counter % 2 == 0):
            sg.summary.scalar("x", x, step=counter)

    with writer.as_default():
        for number in range(5):
            step(jnp.float32(number))
    assert scalars_in(tmp_path) == [(2, "x", 1.0), (4, "x", 3.0)]


def test_the_end_of_the_block_waits_for_steps_that_run(writer, tmp_path):
    @sg.function
    def step(x):
        for _ in range(20):
            x = jnp.tanh(x @ x)
        sg.summary.scalar("x", x[0, 0], step=0)

    with writer.as_default():
        step(jnp.ones((300, 300)))
    assert len(scalars_in(tmp_path)) == 1


def test_conditions_are_asked_each_time(writer, tmp_path):
    answers = iter([True, False, True])
    with writer.as_default(), sg.summary.record_if(lambda: next(answers)):
        assert [sg.summary.scalar("a", n, step=n) for n in range(3)] == [True, False, True]
    assert [step for step, *_ in scalars_in(tmp_path)] == [0, 2]


def test_pictures(writer, tmp_path):
    gray = np.linspace(0, 1, 12).reshape(3, 4)[None, :, :, None]
    color = np.random.default_rng(0).integers(0, 256, (4, 2, 2, 3), np.uint8)
    with writer.as_default(step=5):
        sg.summary.image("gray", gray)
        sg.summary.image("color", color, max_outputs=2)
    pictures = {value.tag: value.image for _, value in values_in(tmp_path)}
    assert sorted(pictures) == ["color", "color/1", "gray"]
    assert (pictures["gray"].height, pictures["gray"].width) == (3, 4)
    for tag, number in (("color", 0), ("color/1", 1)):
        read = Image.open(io.BytesIO(pictures[tag].encoded_image_string))
        np.testing.assert_array_equal(np.asarray(read), color[number])
    read = np.asarray(Image.open(io.BytesIO(pictures["gray"].encoded_image_string)))
    np.testing.assert_allclose(read[:, :, 0] / 255, gray[0, :, :, 0], atol=0.003)


def test_histograms_and_texts(writer, tmp_path):
    with writer.as_default(step=1):
        sg.summary.histogram("weights", jnp.arange(10.0), buckets=5)
        sg.summary.text("notes", "begun")
    (_, spread), (_, words) = values_in(tmp_path)
    assert (spread.histo.num, spread.histo.min, spread.histo.max) == (10, 0, 9)
    assert sum(spread.histo.bucket) == 10
    assert list(words.tensor.string_val) == [b"begun"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda: sg.summary.scalar("a", [1.0, 2.0], step=0), r"one number, got shape \(2,\)"),
        (lambda: sg.summary.image("a", np.ones((4, 4)), step=0), r"data\[None\]"),
        (lambda: sg.summary.image("a", np.ones((1, 4, 4, 2)), step=0), "1, 3 or 4 channels"),
    ],
)
def test_other_shapes_are_refused(writer, tmp_path, record, message):
    with writer.as_default(), pytest.raises(ValueError, match=message):
        record()
    assert list(tmp_path.iterdir()) == []


def test_values_of_replicas_are_to_be_reduced(writer):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    losses = strategy.run(lambda: jnp.float32(1.0))
    with writer.as_default(), pytest.raises(sg.errors.NotAnArrayError, match="Reduce them"):
        sg.summary.scalar("loss", losses, step=0)


def test_a_closed_writer_is_refused(writer):
    writer.close()
    with (
        pytest.raises(RuntimeError, match="open writer, got one that is closed"),
        writer.as_default(),
    ):
        sg.summary.scalar("loss", 1.0, step=0)


def test_threads_have_writers_of_their_own(tmp_path):
    def work(name, go):
        with sg.summary.create_file_writer(tmp_path / name).as_default():
            go.wait(10)
            for step in range(50):
                sg.summary.scalar(name, step, step=step)

    go = threading.Barrier(2)
    threads = [threading.Thread(target=work, args=(name, go)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "ab":
        assert scalars_in(tmp_path / name) == [(step, name, step) for step in range(50)]


def test_writers_of_one_directory_do_not_overwrite_each_other(tmp_path):
    for number in range(3):
        writer = sg.summary.create_file_writer(tmp_path)
        with writer.as_default():
            sg.summary.scalar("a", number, step=number)
        writer.close()
    assert sorted(scalars_in(tmp_path)) == [(n, "a", n) for n in range(3)]


def test_what_was_flushed_is_whole_records_also_if_the_writer_is_never_closed(writer, tmp_path):
    with writer.as_default():
        sg.summary.scalar("a", 1.0, step=0)
    (path,) = tmp_path.iterdir()
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack("<Q", data[at : at + 8])
        at += 16 + length
    assert at == len(data)


def test_without_the_library_the_error_names_the_extra(writer, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with writer.as_default(), pytest.raises(ImportError, match=r"stratagem\[summary\]"):
        sg.summary.scalar("loss", 1.0, step=0)


def test_scalars_are_shown_to_whoever_observes(tmp_path):
    @sg.function
    def step(x):
        sg.summary.scalar("compiled", x * 2, step=1)

    observer = begin_recording()
    try:
        with sg.summary.create_file_writer(tmp_path).as_default():
            sg.summary.scalar("eager", 0.5, step=1)
            step(jnp.float32(3.0))
            with sg.summary.record_if(False):
                sg.summary.scalar("left out", 1.0, step=1)
            sg.summary.histogram("spread", [1.0, 2.0], step=1)
        assert {k: float(v) for k, v in observer.take_reported().items()} == {
            "eager": 0.5,
            "compiled": 6.0,
        }
    finally:
        end_recording()
