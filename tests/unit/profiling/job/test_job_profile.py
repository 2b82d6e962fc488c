"""``sg.profiler`` in one process."""

import weakref

import jax
import jax.numpy as jnp
import pytest

import stratagem as sg
from chrome_traces import read_trace
from stratagem._src.parameter_server.coordinator import cluster_coordinator
from stratagem._src.telemetry.measurement.recorder import begin_recording, end_recording, recorder


@pytest.fixture(autouse=True)
def _no_coordinators(monkeypatch):
    """Hides coordinators that another test has dropped: they are profiled for as long as they exist."""
    monkeypatch.setattr(cluster_coordinator, "_coordinators", weakref.WeakSet())


@pytest.fixture
def step():
    total = sg.Variable(0.0)

    @sg.function
    def step(x):
        total.assign_add(x)

    for _ in range(3):
        step(jnp.float32(1.0))
    return step


def test_a_block_is_recorded_and_written_where_tools_look(step, tmp_path):
    with sg.profiler.Profile(tmp_path) as profile:
        for number in range(2):
            with sg.profiler.Trace("train", step_num=number) as trace:
                step(jnp.float32(1.0))
                trace.set_metadata(epoch=7)
    shown = read_trace(profile.timeline)
    trains = [event for event in shown if event.name == "train"]
    assert [(e.kind, e.args["step_num"], e.args["epoch"]) for e in trains] == [
        ("trace", 0, 7),
        ("trace", 1, 7),
    ]
    steps = [event for event in shown if event.name == "step"]
    for outer, inner in zip(trains, steps, strict=True):
        assert outer.begin <= inner.begin <= inner.end <= outer.end
    run = profile.timeline.name.removesuffix(".trace.json.gz")
    [record] = (tmp_path / "plugins" / "profile" / run).glob("*.xplane.pb")
    assert record.name == "process.xplane.pb"


def test_two_profiles_in_a_second_are_two_runs(tmp_path):
    timelines = set()
    for _ in range(3):
        sg.profiler.experimental.start(tmp_path)
        timelines.add(sg.profiler.experimental.stop())
    assert len(timelines) == 3


def test_steps_are_noted_while_a_profile_runs_and_quick_otherwise(step, tmp_path):
    quick = step._programs.recent
    assert len(quick) == 1
    with sg.profiler.Profile(tmp_path):
        assert step._programs.recent == []
        step(jnp.float32(1.0))
        assert step._programs.recent[0] is not quick[0]
        noted = step._programs.recent[0]
    assert recorder() is None
    step(jnp.float32(1.0))
    assert step._programs.recent[0] is not noted


def test_a_job_that_is_observed_stays_so(step, tmp_path):
    observer = begin_recording()
    try:
        step(jnp.float32(1.0))
        with sg.profiler.Profile(tmp_path) as profile:
            step(jnp.float32(1.0))
        step(jnp.float32(1.0))
        assert recorder() is observer
        assert observer.annotate is None
        assert observer.take().steps == 3
        assert [event.name for event in read_trace(profile.timeline)].count("step") == 1
    finally:
        end_recording()
    assert recorder() is None


def test_one_profile_at_a_time(tmp_path):
    sg.profiler.start(tmp_path)
    with pytest.raises(sg.errors.ProfileError, match="one profile at a time"):
        sg.profiler.start(tmp_path / "other")
    assert sg.profiler.stop(save=False) is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(sg.errors.ProfileError, match=r"Call sg\.profiler\.start first"):
        sg.profiler.stop()


def test_a_profile_of_jax_is_not_disturbed(tmp_path):
    jax.profiler.start_trace(tmp_path)
    try:
        with pytest.raises(sg.errors.ProfileError, match=r"jax\.profiler"):
            sg.profiler.start(tmp_path / "ours")
    finally:
        jax.profiler.stop_trace()
    assert recorder() is None
    assert not (tmp_path / "ours").exists()


def test_a_block_that_raises_is_written(step, tmp_path):
    def fail_after_a_step():
        with sg.profiler.Profile(tmp_path):
            step(jnp.float32(1.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_step()
    [timeline] = tmp_path.glob("*.trace.json.gz")
    assert "step" in {event.name for event in read_trace(timeline)}
    assert recorder() is None


def test_names_are_found_where_tensorflow_has_them():
    for name in sg.profiler.experimental.__all__:
        assert getattr(sg.profiler.experimental, name) is getattr(sg.profiler, name)
