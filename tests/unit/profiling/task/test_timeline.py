"""What was recorded of this process, moved in time, written, read and put on one time line."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from chrome_traces import check_trace, read_trace
from stratagem._src.cli import main
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.jax_compat.profiler_session import planes_of
from stratagem._src.profiling.task.clock import ClockOffset
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem._src.profiling.task.recording import ProfileRecording
from stratagem._src.profiling.task.shifted_record import shifted
from stratagem._src.profiling.task.task_profile import TaskProfile, profiles_in
from stratagem._src.profiling.task.timeline import RUNS, merge_run, timeline


@pytest.fixture(scope="module")
def profile():
    """Returns three steps of two replicas, an eager collective, and draws of input."""
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = sg.Variable(jnp.zeros((8, 8)), aggregation=sg.VariableAggregation.SUM)
    data = sg.data.Dataset.from_tensor_slices(np.ones((40, 8), np.float32)).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(data))

    @sg.function
    def step(x):
        strategy.run(lambda x: total.assign_add(x.T @ x), args=(x,))

    for _ in range(3):
        step(next(iterator))
    recording = ProfileRecording(ProfilerOptions())
    for _ in range(3):
        step(next(iterator))
    strategy.run(lambda: sg.distribute.get_replica_context().all_reduce("SUM", jnp.float32(1.0)))
    jax.block_until_ready(total.read_value())
    found = recording.end("worker 0")
    iterator.close()
    return found


def events_of(record):
    return [
        (plane.name, line.name, event.name, event.start_ns, event.duration_ns)
        for plane in planes_of(record)
        for line in plane.lines
        for event in line.events
    ]


def test_a_record_is_moved_and_nothing_else_changes(profile):
    before = events_of(profile.record)
    assert before
    after = events_of(shifted(profile.record, 5_000_000_123))
    assert [(*names, start - 5_000_000_123, length) for *names, start, length in after] == [
        (*names, start, length) for *names, start, length in before
    ]


def test_replicas_collectives_steps_and_input_are_seen(profile):
    shown = check_trace(timeline([profile]))
    assert {event.task for event in shown} == {"worker 0"}
    for replica in (0, 1):
        row = f"replica {replica} (device {replica})"
        kinds = [event.kind for event in shown if event.row == row]
        assert kinds.count("collective") >= 3  # one in each step
        assert "compute" in kinds
    names = [event.name for event in shown]
    # Steps that were compiled before it began, and an eager one.
    assert names.count("step") == 4
    assert names.count("input wait") == 3
    assert {"replica 0", "replica 1", "meet at all_reduce(SUM)", "all_reduce(SUM)"} <= set(names)
    # A collective is part of a step.
    steps = [event for event in shown if event.name == "step"]
    for event in shown:
        if event.kind == "collective":
            assert any(step.begin <= event.begin for step in steps)


def test_tasks_whose_clocks_differ_are_on_one_time_line(profile):
    """What happened at the same time is seen at the same time, whatever the clocks said."""
    ahead = 3_600_000_000_000
    # As an hour earlier by the other clock.
    other = dataclasses.replace(profile, task="worker 1", clock=ClockOffset(-ahead, 0))
    early, late = (
        [e for e in check_trace(timeline([profile, other])) if e.task == task]
        for task in ("worker 0", "worker 1")
    )
    assert {round(b.begin - a.begin) for a, b in zip(early, late, strict=True)} == {ahead // 1000}


def test_what_is_written_counts_from_the_same_moment(profile, tmp_path):
    origin = profile.began_ns - 1_000_000
    run = tmp_path / RUNS / "2026_01_01_00_00_00"
    other = dataclasses.replace(profile, task="worker 10")
    for each in (other, profile):
        each.from_origin(origin).write(run)
    read = profiles_in(run)
    assert [each.task for each in read] == ["worker 0", "worker 10"]
    assert {each.origin_ns for each in read} == {origin}
    assert read[0].replicas == {0: 0, 1: 1}
    # TensorBoard shows the files' own times.
    first = min(start for *_, start, _ in events_of((run / "worker_0.xplane.pb").read_bytes()))
    assert first == 1_000_000 + min(start for *_, start, _ in events_of(profile.record))
    merged = merge_run(run)
    assert merged == tmp_path / "2026_01_01_00_00_00.trace.json.gz"
    shown = read_trace(merged)
    assert {event.task for event in shown} == {"worker 0", "worker 10"}
    assert min(event.begin for event in shown) == pytest.approx(first / 1000, abs=0.002)


def test_a_profile_travels(profile):
    found = TaskProfile.from_message(profile.to_message())
    assert found == profile


def test_the_command_puts_the_latest_run_on_a_time_line(profile, tmp_path, capsys):
    for name in ("2026_01_01_00_00_00", "2026_01_02_00_00_00"):
        profile.from_origin(profile.began_ns).write(tmp_path / RUNS / name)
    assert main(["timeline", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / '2026_01_02_00_00_00.trace.json.gz'}\n"
    assert main(["timeline", str(tmp_path / RUNS / "2026_01_01_00_00_00")]) == 0
    assert len(list(tmp_path.glob("*.gz"))) == 2
    assert main(["timeline", str(tmp_path / RUNS)]) == 2
    assert "contains no profiles" in capsys.readouterr().err


def test_a_folder_with_something_else_is_refused(profile, tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"must have files \*.xplane.pb"):
        profiles_in(tmp_path)
    profile.write(tmp_path)
    (tmp_path / "worker_0.task.json").write_text(json.dumps({"task": "worker 0"}))
    with pytest.raises(InvalidArgumentError, match=r"must be files of sg\.profiler"):
        profiles_in(tmp_path)


@pytest.mark.parametrize("level", [{"host_tracer_level": 4}, {"python_tracer_level": -1}])
def test_levels_that_do_not_exist_are_refused(level):
    with pytest.raises(InvalidArgumentError, match="must be from"):
        ProfilerOptions(**level)
