"""``stratagem run --on kubernetes`` with a stand-in for the cluster whose pods are real processes."""

import os
import signal

import psutil
import pytest
from kubernetes_stand_in import StandIn
from processes import marked, poll

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(mark, tmp_path, monkeypatch):
    """Returns a cluster, and has clients find it."""
    clusters = []

    def make(**options):
        clusters.append(StandIn(tmp_path, **options))
        monkeypatch.setenv("KUBECONFIG", str(clusters[-1].config))
        return clusters[-1]

    yield make
    for found in clusters:
        found.close()


FLAGS = ["run", "--on", "kubernetes", "--image", "registry/image:1"]


@pytest.mark.parametrize(
    "jobsets",
    [pytest.param(False, id="jobs"), pytest.param(True, marks=pytest.mark.slow, id="jobset")],
)
def test_every_role_runs_and_is_shown(start, script, cluster, jobsets):
    found = cluster(jobsets=jobsets)
    program = script(
        "say_ready()\n"
        "while not all(Path(f'ready-{t}').exists() for t in ('worker-0', 'worker-1', 'ps-0')):\n"
        "    time.sleep(0.01)\n"
        "print(sys.argv[1], sorted(config['cluster']), flush=True)\n"
        "if kind == 'ps': hang()"
    )
    job = start(*FLAGS, "--workers", 2, "--ps", 1, program, "$(HOME)").finish()
    assert job.returncode == 0, job.stdout + job.stderr
    for worker in (0, 1):
        assert f"[worker {worker}] $(HOME) ['ps', 'worker']" in job.stdout
    kind = "JobSet train" if jobsets else "Job train-worker"
    assert f"stratagem: created {kind} in namespace default" in job.stderr
    assert {pod["status"]["phase"] for pod in found.of_kind("pods")} == {"Succeeded"}


@pytest.mark.slow
def test_pods_that_do_not_start_are_named(start, script, cluster):
    found = cluster()
    found.has_room = False
    job = start(*FLAGS, "--workers", 2, script(""))
    for line in job.process.stderr:
        if "waiting for" in line:
            break
    first, second = sorted(pod["metadata"]["name"] for pod in found.of_kind("pods"))
    assert line == f"stratagem: 5 s: waiting for {first}, {second} to start\n"
    found.has_room = True
    assert job.finish().returncode == 0, job.stderr


def test_failure_gives_its_code_and_is_named(start, script, cluster):
    cluster()
    program = script("if index == 0: hang()\nprint('failing'); sys.exit(6)")
    job = start(*FLAGS, "--workers", 2, program).finish()
    assert job.returncode == 6
    assert job.stdout.count("worker 1 failed with exit code 6") == 1


def test_pod_that_is_taken_away_comes_back_and_the_job_starts_again(
    start, script, cluster, tmp_path
):
    found = cluster()
    program = script("say_ready()\nwhile not Path('go').exists(): time.sleep(0.01)\nprint('done')")
    job = start(*FLAGS, "--workers", 2, "--max-restarts", 1, program)
    first = poll(lambda: (tmp_path / "ready-worker-1").exists() and found.of_kind("pods"))
    pid = (tmp_path / "ready-worker-1").read_text()
    [pod] = [
        p["metadata"]["name"] for p in first if p["metadata"]["name"].startswith("train-worker-1")
    ]
    found.evict(pod)
    poll(lambda: (tmp_path / "ready-worker-1").read_text() not in ("", pid), 60)
    (tmp_path / "go").touch()
    job.finish()
    assert job.returncode == 0, job.stdout + job.stderr
    assert "the launcher of worker 1 is gone; restart 1 of the job" in job.stdout
    assert len(found.of_kind("pods")) == 3


def test_ctrl_c_takes_everything_away(start, script, cluster, ready):
    found = cluster()
    job = start(*FLAGS, "--workers", 1, script("hang()"))
    ready("worker-0")
    job.process.send_signal(signal.SIGINT)
    job.finish()
    assert job.returncode == 130
    assert "deleted Job train-worker" in job.stderr
    assert not any(
        found.of_kind(kind) for kind in ("jobs", "services", "secrets", "networkpolicies", "pods")
    )


@pytest.mark.slow
def test_ctrl_c_while_everything_is_made_leaves_nothing(start, script, cluster):
    found = cluster()
    found.held.add("secrets")
    job = start(*FLAGS, "--workers", 2, script(""))
    poll(lambda: found.of_kind("services"), 60)
    job.process.send_signal(signal.SIGINT)
    assert job.finish().returncode == 130
    found.held.clear()
    assert not any(found.of_kind(kind) for kind in ("jobs", "services", "pods"))


def test_secret_is_in_no_argument_and_no_output(start, script, cluster, ready, mark, tmp_path):
    found = cluster()
    job = start(*FLAGS, "--workers", 1, script("hang()"))
    [task] = ready("worker-0")
    [secret] = (item["stringData"]["secret"] for item in found.of_kind("secrets"))
    derived = psutil.Process(task).environ()["STRATAGEM_CLUSTER_SECRET"]
    commands = [" ".join(process.cmdline()) for process in marked(mark)]
    assert any("--task=worker:0" in command for command in commands)
    os.kill(task, signal.SIGKILL)
    job.finish()
    assert job.returncode == 137
    for text in (*commands, job.stdout, job.stderr):
        assert secret not in text
        assert derived not in text


def test_job_that_is_there_already_is_left_alone(start, script, cluster):
    found = cluster()
    made = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "train"}, "spec": {}}
    found.create("services", "default", made)
    job = start(*FLAGS, script("")).finish()
    assert job.returncode == 2
    assert 'Kubernetes answered 409: services "train" already exists' in job.stderr
    assert not any(found.of_kind(kind) for kind in ("jobs", "secrets", "pods"))


def test_cluster_that_does_not_answer_is_said(start, script, cluster, tmp_path):
    cluster().close()
    job = start(*FLAGS, "--no-jobset", script("")).finish()
    assert job.returncode == 2
    assert "cannot reach the Kubernetes API" in job.stderr
