"""What a task does while it traces and compiles, as the dashboard shows it."""

import contextlib
import re

import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.telemetry.measurement.recorder import (
    activity,
    begin_recording,
    end_recording,
)


@pytest.fixture
def recorder():
    yield begin_recording()
    end_recording()


@pytest.fixture
def compiled(recorder):
    """What the recorder said whenever XLA had just compiled a program, or had it from the cache."""
    said = []

    def listen(name, seconds, **details):
        if name.endswith(("backend_compile_duration", "compilation_cache/compile_time_saved_sec")):
            said.append(recorder.current_activity)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield said
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_function_is_compiling_while_it_is_traced_and_compiled(recorder, compiled):
    traced = []

    @sg.function
    def double(x):
        traced.append(recorder.current_activity)
        return x * 2 + 0.125

    assert recorder.current_activity == ""
    x = jnp.ones(3)
    compiled.clear()
    double(x)
    assert traced == ["compiling"]
    assert compiled
    assert set(compiled) == {"compiling"}
    assert recorder.current_activity == ""
    double(x)
    assert traced == ["compiling"]


def test_keras_is_compiling_too(recorder, compiled):
    keras = pytest.importorskip("keras")
    with sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse")
    x = np.ones((4, 3), np.float32)
    model.predict(x, verbose=0)  # creates the weights
    compiled.clear()
    model.fit(x, x[:, :1], verbose=0)
    assert "compiling" in compiled
    assert recorder.current_activity == ""


def test_the_innermost_activity_is_shown_until_its_end(recorder):
    with activity("recovering"):
        with contextlib.suppress(ValueError), activity("compiling"):
            assert recorder.current_activity == "compiling"
            raise ValueError
        assert recorder.current_activity == "recovering"
    assert recorder.current_activity == ""


def test_without_monitoring_it_costs_nothing():
    with activity("compiling") as nothing:
        assert nothing is None


def test_a_restored_checkpoint_is_noted(recorder, tmp_path):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0), w=sg.Variable([1.0, 2.0]))
    path = checkpoint.save(tmp_path / "model")
    assert recorder.take_notes() == []
    checkpoint.restore(path)
    [note] = recorder.take_notes()
    assert note["kind"] == "recovery"
    assert re.fullmatch(r"restored model-1 in \d+\.\d s", note["text"])
    checkpoint.restore(None)
    assert recorder.take_notes() == []
