"""A job of several processes that is profiled: all of them are on one time line."""

import pytest

from chrome_traces import read_trace

SECONDS = 200.0
pytestmark = pytest.mark.timeout(2 * SECONDS)

TRAIN = """
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = sg.Variable(np.zeros((8, 8), np.float32), aggregation=sg.VariableAggregation.SUM)
data = sg.data.Dataset.from_tensor_slices(np.ones((80, 8), np.float32)).batch(4)
options = sg.data.Options()
options.experimental_distribute.auto_shard_policy = sg.data.experimental.AutoShardPolicy.DATA
iterator = iter(strategy.experimental_distribute_dataset(data.with_options(options)))

@sg.function
def step(x):
    strategy.run(lambda x: total.assign_add(x.T @ x), args=(x,))

step(next(iterator))
with sg.profiler.Profile("logs") as profile:
    for _ in range(3):
        step(next(iterator))
assert (profile.timeline is not None) == (index == 0)
"""

CLOCKS = """
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.profiling.job.worker_profiles import compare_clocks

began = time.time_ns()
clock = compare_clocks(joined_cluster())
# The truth is 0: the workers are on one machine.
assert abs(clock.ahead_ns) <= time.time_ns() - began, clock
assert (clock.ahead_ns, clock.within_ns) == (0, 0) or index > 0, clock
"""

COORDINATE = """
import numpy as np
import stratagem as sg

resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
if kind != "chief":
    sg.distribute.Server(resolver.cluster_spec(), kind, index).join()
strategy = sg.distribute.ParameterServerStrategy(resolver)
coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = sg.Variable(np.zeros(8, np.float32))
iterator = iter(coordinator.create_per_worker_dataset(lambda: sg.data.Dataset.range(1000).batch(4)))

@sg.function
def add(iterator):
    total.assign_add(total.read_value() + next(iterator)[0])

coordinator.schedule(add, args=(iterator,))
coordinator.join()
while len(coordinator.present_workers) < 2:
    time.sleep(0.01)
with sg.profiler.Profile("logs"):
    for worker in (0, 1):
        for _ in range(3):
            coordinator.schedule(add, args=(iterator,), worker=worker)
    coordinator.join()
    total.read_value()
"""


def seen(tmp_path):
    """Returns what the only profile shows, and the names of the records that TensorBoard finds."""
    [timeline] = (tmp_path / "logs").glob("*.trace.json.gz")
    run = timeline.name.removesuffix(".trace.json.gz")
    records = (tmp_path / "logs" / "plugins" / "profile" / run).glob("*.xplane.pb")
    return read_trace(timeline), sorted(path.name for path in records)


def test_workers_in_step_are_on_one_time_line(start, script, tmp_path):
    job = start("run", "--workers", 2, script(TRAIN + CLOCKS)).finish(timeout=SECONDS)
    assert job.returncode == 0, job.stderr
    shown, records = seen(tmp_path)
    assert records == ["worker_0.xplane.pb", "worker_1.xplane.pb"]
    together = {}
    for worker in (0, 1):
        of_task = [event for event in shown if event.task == f"worker {worker}"]
        names = [event.name for event in of_task]
        assert names.count("step") == names.count("input wait") == 3
        collectives = [
            event
            for event in of_task
            if event.kind == "collective" and event.row.startswith(f"replica {worker} ")
        ]
        assert len(collectives) >= 3
        for event in of_task:
            if event.name.startswith("all workers: step"):
                together.setdefault(event.args["number"], []).append(event)
    # None ends in one worker before it has begun in the other: their collectives wait for each other.
    assert len(together) == 3
    for one, other in together.values():
        assert max(one.begin, other.begin) < min(one.end, other.end)


@pytest.mark.slow
def test_coordinator_workers_and_servers_are_on_one_time_line(start, script, tmp_path):
    job = start("run", "--workers", 2, "--ps", 1, "--chief", script(COORDINATE)).finish(
        timeout=SECONDS
    )
    assert job.returncode == 0, job.stderr
    shown, records = seen(tmp_path)
    assert records == [
        f"{task}.xplane.pb" for task in ("coordinator", "ps_0", "worker_0", "worker_1")
    ]
    of_kind = {}
    for event in shown:
        of_kind.setdefault((event.task, event.name), []).append(event)
    served = of_kind["ps 0", "serve push"]
    for task in ("worker 0", "worker 1"):
        assert len(of_kind[task, "input wait"]) == 3
        for closure in of_kind[task, "closure add"]:
            pulls, pushes = (
                [e for e in of_kind[task, name] if e.row == closure.row and _within(e, closure)]
                for name in ("pull", "push")
            )
            assert pulls[0].end <= pushes[-1].begin
            # What the server does for it happens meanwhile.
            assert any(_within(e, pushes[-1]) for e in served)
    [read] = of_kind["coordinator", "pull"]
    assert any(_within(e, read) for e in of_kind["ps 0", "serve pull"])


def _within(event, other):
    return other.begin <= event.begin and event.end <= other.end


@pytest.mark.slow
def test_a_worker_that_fails_in_the_block_does_not_wait_for_others(start, script, tmp_path):
    program = TRAIN.replace(
        "        step(next(iterator))\n",
        "        step(next(iterator))\n        if index == 1: raise ValueError('broken')\n",
    )
    job = start("run", "--workers", 2, script(program)).finish(timeout=SECONDS)
    assert job.returncode == 1, job.stderr
    assert "ValueError: broken" in job.stderr
    written = [path.name for path in (tmp_path / "logs").rglob("*.xplane.pb")]
    assert "worker_1.xplane.pb" in written


@pytest.mark.slow
def test_a_worker_that_is_lost_is_left_out_with_a_word(start, script, tmp_path):
    program = COORDINATE.replace(
        "    total.read_value()\n",
        "    pid = coordinator.schedule(lambda: os.getpid(), worker=1).fetch()\n"
        "    os.kill(pid, signal.SIGKILL)\n"
        "    while 1 in coordinator.present_workers: time.sleep(0.01)\n",
    )
    job = start("run", "--workers", 2, "--ps", 1, "--chief", script(program)).finish(
        timeout=SECONDS
    )
    assert job.returncode == 0, job.stderr
    shown, records = seen(tmp_path)
    assert records == ["coordinator.xplane.pb", "ps_0.xplane.pb", "worker_0.xplane.pb"]
    assert {"worker 0", "ps 0"} <= {event.task for event in shown}
    assert "The profile will be without worker 1" in job.stderr
