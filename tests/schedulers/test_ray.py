"""A real Ray: jobs by ``stratagem run --on ray``, functions, several nodes, one of them killed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import poll

from conftest import IN_STEP, SERVERS

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray makes an environment")
from ray.cluster_utils import Cluster  # noqa: E402

import stratagem as sg  # noqa: E402
from belongings import Belongings, command_of  # noqa: E402

pytestmark = [pytest.mark.timeout(500), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="session")
def kept_for_the_session():
    """Returns the processes of Ray itself, which keeps some for later, also actors of Ray Data."""

    def kept():
        ours = (
            p
            for p in Belongings.now().processes
            if command_of(p).startswith(("ray::_", "ray::IDLE"))
        )
        return Belongings(processes=frozenset(ours))

    return kept


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes beside the head, on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray gives actors the lowest priority but four, so that on a busy machine they hardly run.
        patch.setenv("RAY_worker_niceness", "0")
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        for number in range(2):
            cluster.add_node(num_cpus=3, resources={f"node{number}": 1})
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def run(cluster, tmp_path, mark):
    """Starts ``stratagem run --on ray`` on the cluster."""
    started = []

    def run(*arguments, address=("--ray-address", cluster.address)):
        command = [sys.executable, "-m", "stratagem", "run", "--on", "ray"]
        process = subprocess.Popen(
            [*command, *address, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def connected(cluster, monkeypatch):
    """Connects this process to the cluster."""
    monkeypatch.setenv("PYTHONBREAKPOINT", "")  # Ray sets it
    ray.init(cluster.address, log_to_driver=False, ignore_reinit_error=True)
    yield
    ray.shutdown()


def finished(process, seconds=200):
    process.out, process.err = process.communicate(timeout=seconds)
    return process


WHO = """
import json, os, time
from pathlib import Path
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
Path(name).write_text(str(os.getpid()))
while not Path("go").exists(): time.sleep(0.05)
print("done", name, flush=True)
"""


def text_of(path: Path):
    return path.read_text() if path.exists() else ""


def test_workers_in_step(run, program):
    job = finished(run("--workers", 3, program(IN_STEP)))
    assert job.returncode == 0, job.out + job.err
    said = set(re.findall(r"^\[worker \d\] workers .*", job.out, re.M))
    assert said == {f"[worker {n}] workers 3 sum [6.0]" for n in range(3)}


def test_ray_is_started_for_the_job_and_ended_with_it(run, program):
    job = finished(run("--workers", 2, program(IN_STEP), address=()))  # ``mark`` sees what is left
    assert job.returncode == 0, job.out + job.err
    assert job.out.count("workers 2 sum [3.0]") == 2


def test_parameter_servers(run, program):
    job = finished(run("--chief", "--workers", 2, "--ps", 1, program(SERVERS)))
    assert job.returncode == 0, job.out + job.err
    assert "[chief 0]  counted 20.0" in job.out


def test_flags_reach_tasks_of_every_kind(run, show):
    show(run)


def test_observed_job_is_shown_and_told_of(run, watch):
    watch(run)


def test_failure_is_named_and_gives_its_code(run, program):
    source = (
        "import os, sys, time\nif '1}' in os.environ['TF_CONFIG'][-4:]: sys.exit(9)\ntime.sleep(99)"
    )
    job = finished(run("--workers", 2, program(source)))
    assert job.returncode == 9, job.out + job.err
    assert "stratagem: worker 1 failed with exit code 9" in job.err


def test_actor_of_a_worker_that_is_killed_comes_back_and_joins(run, program, tmp_path):
    job = run("--chief", "--workers", 1, "--ps", 1, program(WHO))
    first = poll(lambda: text_of(tmp_path / "worker-0"), 90)
    poll(lambda: text_of(tmp_path / "chief-0") and text_of(tmp_path / "ps-0"), 60)
    # The task's supervisor, the node, its supervisor, the actor.
    actor = psutil.Process(int(first)).parent().parent().parent().parent()
    assert "RayNode" in " ".join(actor.cmdline()), actor.cmdline()
    os.kill(actor.pid, signal.SIGKILL)
    poll(lambda: text_of(tmp_path / "worker-0") not in ("", first), 90)
    (tmp_path / "go").touch()
    finished(job)
    assert job.returncode == 0, job.out + job.err
    assert "the launcher of worker 0 is back; restarting its tasks" in job.err
    assert "done chief-0" in job.out


def test_killed_node_starts_the_job_again_on_another(cluster, run, program, tmp_path):
    node = cluster.add_node(num_cpus=4)
    job = run("--workers", 3, "--cpus", 3, "--max-restarts", 1, program(WHO))
    pids = poll(lambda: all(text_of(tmp_path / f"worker-{n}") for n in range(3)), 90) and [
        text_of(tmp_path / f"worker-{n}") for n in range(3)
    ]
    spare = cluster.add_node(num_cpus=4)
    cluster.remove_node(node, allow_graceful=False)
    poll(lambda: all(text_of(tmp_path / f"worker-{n}") not in ("", pids[n]) for n in range(3)), 240)
    (tmp_path / "go").touch()
    finished(job)
    cluster.remove_node(spare)
    assert job.returncode == 0, job.out + job.err
    assert "restart 1 of the job" in job.err
    assert job.out.count("done worker") == 3


def total(shards):
    import numpy as np

    import stratagem as sg
    from stratagem.integrations.ray import get_dataset_shard

    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    mine = np.float32(0.0)
    if shards:
        for batch in get_dataset_shard("train").iter_batches(batch_size=4):
            mine += batch["id"].sum()

    @sg.function
    def add(x):
        return strategy.run(
            lambda x: sg.distribute.get_replica_context().all_reduce("SUM", x), args=(x,)
        )

    values = strategy.experimental_distribute_values_from_function(lambda _: np.float32(mine + 1))
    return float(strategy.experimental_local_results(add(values))[0])


def test_function_in_workers(connected):
    assert sg.integrations.ray.run(total, workers=2, args=(False,)) == [2.0, 2.0]


def test_shards_of_ray_data_are_everything_once(connected):
    import ray.data

    dataset = ray.data.range(20)
    results = sg.integrations.ray.run(total, workers=2, args=(True,), datasets={"train": dataset})
    assert results == [sum(range(20)) + 2.0] * 2


def test_program_of_the_examples(cluster, mark):
    file = Path(__file__).parents[2] / "examples" / "jobs" / "ray_program.py"
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str([float(sum(range(32)))] * 2) in done.stdout


def test_exception_of_a_worker_is_raised(connected):
    def fails():
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise KeyError("the worker's own")

    with pytest.raises(KeyError, match="the worker's own"):
        sg.integrations.ray.run(fails, workers=2)


def test_secret_is_not_in_what_ray_shows(connected):
    secret = sg.integrations.ray.run(lambda: os.environ["STRATAGEM_CLUSTER_SECRET"], workers=1)[0]
    assert len(secret) == 64
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    logs = [
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_socket()
    ]
    assert logs
    assert not any(secret.encode() in log for log in logs)


def test_resolver_of_own_actors(connected):
    @ray.remote
    class Mine:
        def spec(self, index):
            resolver = sg.distribute.cluster_resolver.RayClusterResolver(
                {"worker": 2}, "worker", index, group="mine"
            )
            return resolver.cluster_spec().as_dict(), resolver.process_id

    actors = [Mine.remote() for _ in range(2)]
    (first, zero), (second, one) = ray.get([a.spec.remote(i) for i, a in enumerate(actors)])
    assert first == second
    assert (zero, one) == (0, 1)
    assert len(set(first["worker"])) == 2


def test_resolver_names_who_does_not_come(connected):
    resolver = sg.distribute.cluster_resolver.RayClusterResolver(
        {"worker": 2}, "worker", 0, group="lonely", timeout=0.5
    )
    with pytest.raises(RuntimeError, match="worker 1 did not"):
        resolver.cluster_spec()


def test_no_room_is_said(connected, caplog):
    with pytest.raises(ConnectionError, match="must place 99 tasks"):
        sg.integrations.ray.run(print, workers=99, start_timeout=7.0)
    [said] = [record.message for record in caplog.records if record.name == "stratagem"]
    assert said.startswith("waiting for the Ray cluster to place 99 tasks (5 s of 7)")
