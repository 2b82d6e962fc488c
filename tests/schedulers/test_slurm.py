"""Jobs of a real Slurm: submitted, inside an allocation, with servers, killed, preempted."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import marked, poll
from slurm_cluster import SlurmCluster, why_not

from belongings import Belongings, command_of
from conftest import IN_STEP, SERVERS

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "Slurm is here"),
]


@pytest.fixture(scope="session")
def kept_for_the_session():
    """Returns the controller of Slurm, which a test starts again."""

    def kept():
        controller = ("slurmctld", ": slurmscriptd")
        ours = (p for p in Belongings.now().processes if command_of(p).startswith(controller))
        return Belongings(processes=frozenset(ours))

    return kept


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm for all tests of this file."""
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def run(slurm, mark, tmp_path):
    """Starts ``stratagem run --on slurm`` with arguments."""
    started = []

    def run(*arguments, inside=(), env=None):
        command = [*inside, sys.executable, "-m", "stratagem", "run", "--on", "slurm"]
        command += ["--shared-dir", str(tmp_path / "shared")]
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=tmp_path,
            env={**slurm.env, "LAUNCH_TEST_MARK": mark, **(env or {})},
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
    slurm.run("scancel", "--full", "--user=root")
    poll(lambda: not slurm.run("squeue", "-h").strip(), 60)


def finished(process, seconds=150):
    process.out, process.err = process.communicate(timeout=seconds)
    return process


def test_workers_in_step_on_two_nodes(run, program, tmp_path):
    job = finished(run("--workers", 4, "--nodes", 2, "--cpus", 2, program(IN_STEP)))
    assert job.returncode == 0, job.out + job.err
    said = set(re.findall(r"^\[worker \d\] workers .*", job.out, re.M))
    assert said == {f"[worker {n}] workers 4 sum [10.0]" for n in range(4)}
    assert not list((tmp_path / "shared").iterdir())  # the secret is gone


CONTRACT = f"""
import sys
import pytest

tests = {str(Path(__file__).parents[1])!r}
sys.exit(pytest.main([
    "--rootdir", tests + "/..", "--config-file", tests + "/../pyproject.toml", "-p", "no:cacheprovider",
    "-m", "layout and not slow", tests + "/contract",
]))
"""


def test_contract_of_workers_on_two_nodes(run, program):
    job = finished(run("--workers", 2, "--nodes", 2, "--cpus", 1, program(CONTRACT)), 280)
    assert job.returncode == 0, job.out + job.err
    assert len(re.findall(r"^\[worker \d\] .*\[100%\]", job.out, re.M)) == 2


def test_parameter_servers_and_chief_by_role_in_an_allocation(run, slurm, program):
    inside = ["salloc", "-N2", "-n4", "--quiet"]
    flags = ["--chief", "--workers", 2, "--ps", 1]
    # salloc runs the launcher here, where only Slurm's daemons know the names of nodes.
    job = finished(
        run(*flags, program(SERVERS), inside=inside, env={"SLURMD_NODENAME": "localhost"})
    )
    assert job.returncode == 0, job.out + job.err
    assert "[chief 0]  counted 20.0" in job.out


WHO = """
import json, os, time
from pathlib import Path
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
Path(f"{name}.{os.environ.get('SLURM_RESTART_COUNT', 0)}").write_text(str(os.getpid()))
print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("SLURM_GPUS_ON_NODE"), flush=True)
"""
HANG = (
    WHO
    + """
while not Path("go").exists(): time.sleep(0.05)
"""
)


def test_gpus_of_the_step_are_shared_out(run, program):
    job = finished(run("--workers", 4, "--nodes", 2, "--gpus", 1, program(WHO)))
    assert job.returncode == 0, job.out + job.err
    assert sorted(re.findall(r"\] (\d) 2$", job.out, re.M)) == ["0", "0", "1", "1"]


def test_killed_task_is_named_and_ends_the_job_with_its_code(run, program, tmp_path):
    job = run("--workers", 2, program(HANG))
    pid = poll(lambda: text_of(tmp_path / "worker-1.0"), 60)
    os.kill(int(pid), signal.SIGKILL)
    finished(job)
    assert job.returncode == 137
    assert "stratagem: worker 1 was killed by SIGKILL" in job.out


def test_killed_worker_of_a_chief_comes_back_alone(run, program, tmp_path):
    source = HANG + "if name == 'chief-0': print('done')"
    job = run("--chief", "--workers", 1, "--ps", 1, program(source))
    first = poll(lambda: text_of(tmp_path / "worker-0.0"), 60)
    os.kill(int(first), signal.SIGKILL)
    poll(lambda: text_of(tmp_path / "worker-0.0") not in ("", first), 60)
    (tmp_path / "go").touch()
    finished(job)
    assert job.returncode == 0, job.out + job.err
    assert "worker 0 was killed by SIGKILL; restarting it" in job.out


def test_lost_node_of_the_step_starts_another_step(run, program, tmp_path):
    source = HANG + "print('steps', os.environ['SLURM_STEP_ID'])"
    job = run("--workers", 2, "--max-restarts", 1, program(source))
    task = psutil.Process(int(poll(lambda: text_of(tmp_path / "worker-1.0"), 60)))
    node = task.parent().parent()  # its supervisor's parent is the node
    assert "--task=by-rank" in node.cmdline()
    task_pid = task.pid
    node.kill()
    poll(lambda: text_of(tmp_path / "worker-1.0") not in ("", str(task_pid)), 90)
    (tmp_path / "go").touch()
    finished(job)
    assert job.returncode == 0, job.out + job.err
    assert "the launcher of worker 1 is gone; restart 1 of the job" in job.out
    assert "[worker 0] steps 1" in job.out


def test_secret_is_in_no_argument_no_log_and_no_file_that_others_can_read(
    run, slurm, program, mark, tmp_path
):
    job = run(
        "--workers", 2, program(HANG), env={"STRATAGEM_CLUSTER_SECRET": "of somebody else's job"}
    )
    task = int(poll(lambda: text_of(tmp_path / "worker-0.0"), 60))
    [file] = (tmp_path / "shared").rglob("secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    of_task = psutil.Process(task).environ()["STRATAGEM_CLUSTER_SECRET"]
    secrets = [file.read_text(), of_task, "of somebody else's job"]
    assert len(secrets[0]) == 64
    commands = [" ".join(process.cmdline()) for process in marked(mark)]
    assert sum("--task=by-rank" in command for command in commands) >= 2
    job_id = slurm.run("squeue", "-h", "-o", "%A").strip()
    batch = slurm.run("scontrol", "write", "batch_script", job_id, "-")
    (tmp_path / "go").touch()
    finished(job)
    assert job.returncode == 0
    logs = [path.read_text(errors="replace") for path in slurm.folder.glob("*.log")]
    for secret in secrets:
        assert not any(secret in text for text in [*commands, batch, job.out, job.err, *logs])


def test_preempted_job_hears_of_it_and_is_queued_again(run, slurm, program, tmp_path):
    source = """
import json, os, signal, sys, time
from pathlib import Path
count = os.environ.get("SLURM_RESTART_COUNT", "0")
def saved(*_):
    Path(f"saved-{count}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, saved)
Path(f"began-{count}").touch()
while count == "0": time.sleep(0.05)
print("finished after restart", count, flush=True)
"""
    flags = ["--workers", 2, "--nodes", 2, "--cpus", 8, "--requeue", "--partition", "low"]
    job = run(*flags, program(source))
    poll((tmp_path / "began-0").exists, 60)
    done = subprocess.Popen(
        ["srun", "-p", "high", "-N2", "-n2", "-c8", "sleep", "1"],
        env=slurm.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    poll((tmp_path / "saved-0").exists, 60)
    assert done.wait(90) == 0
    finished(job, 240)
    assert job.returncode == 0, job.out + job.err
    assert "finished after restart 1" in job.out


def test_signal_before_the_time_limit_queues_the_job_again(run, slurm, program, tmp_path):
    source = HANG + "print('restart', os.environ.get('SLURM_RESTART_COUNT'), flush=True)"
    job = run("--workers", 1, "--requeue", program(source))
    poll(lambda: text_of(tmp_path / "worker-0.0"), 60)
    job_id = slurm.run("squeue", "-h", "-o", "%A").strip()
    # What --signal=B:TERM@65 does when 65 seconds are left.
    slurm.run("scancel", "--batch", "--signal=TERM", job_id, check=True)
    poll(lambda: "BeginTime" in slurm.run("squeue", "-h", "-o", "%r"), 60)
    (tmp_path / "go").touch()
    finished(job, 240)
    assert job.returncode == 0, job.out + job.err
    assert "requeueing job" in job.out
    assert "[worker 0] restart 1" in job.out


def test_job_of_a_minute_runs_until_its_time_is_over(run, program, tmp_path):
    source = HANG.replace("while", "signal.signal(signal.SIGTERM, end)\nwhile")
    end = (
        "import signal, sys\ndef end(*_):\n    print('told to end', flush=True)\n    sys.exit(0)\n"
    )
    began = time.monotonic()
    job = finished(run("--workers", 1, "--requeue", "--time", "1", program(end + source)), 240)
    assert job.returncode == 124, job.out + job.err
    assert time.monotonic() - began > 55
    assert "[worker 0] told to end" in job.out
    assert "requeueing" not in job.out
    assert ": timeout" in job.err


@pytest.mark.parametrize("flags", [(), ("--requeue",)], ids=["", "requeue"])
def test_ctrl_c_cancels_the_job(run, slurm, program, tmp_path, flags):
    job = run("--workers", 1, *flags, program(HANG))
    poll(lambda: text_of(tmp_path / "worker-0.0"), 60)
    job.send_signal(signal.SIGINT)
    finished(job)
    assert job.returncode == 130
    assert "cancelled job" in job.err
    poll(lambda: not slurm.run("squeue", "-h").strip(), 60)
    [shown] = re.findall(r"JobState=(\w+)", last_job(slurm))
    assert shown == "CANCELLED"


def test_ctrl_c_while_the_job_is_submitted_leaves_none(run, slurm, program, tmp_path):
    submitted, answer = tmp_path / "submitted", tmp_path / "answer"
    path = wrapped("sbatch", tmp_path, after=f"touch {submitted}; {until(answer)}")
    job = run("--workers", 1, program(HANG), env={"PATH": path})
    poll(submitted.exists, 60)
    job.send_signal(signal.SIGINT)
    answer.touch()
    finished(job)
    assert job.returncode == 130
    assert "cancelled job" in job.err
    poll(lambda: not slurm.run("squeue", "-h").strip(), 60)


def test_job_that_slurm_cancels_is_not_queued_again(run, slurm, program, tmp_path):
    job = run("--workers", 1, "--requeue", program(HANG))
    poll(lambda: text_of(tmp_path / "worker-0.0"), 60)
    slurm.run("scancel", slurm.run("squeue", "-h", "-o", "%A").strip(), check=True)
    finished(job)
    assert job.returncode != 0
    assert ": cancelled" in job.err
    assert "requeueing" not in job.out


def test_launcher_says_for_whom_it_waits(run, program, tmp_path):
    path = wrapped("srun", tmp_path, before=until(tmp_path / "come"))
    job = run("--workers", 2, program(""), env={"PATH": path})
    for line in job.stdout:
        if "waiting for" in line:
            break
    assert line == "stratagem: 5 s: waiting for worker 0, worker 1\n"
    (tmp_path / "come").touch()
    assert finished(job).returncode == 0, job.out + job.err


def test_job_is_followed_over_a_restart_of_the_controller(run, slurm, program, tmp_path):
    job = run("--workers", 1, program(HANG))
    poll(lambda: text_of(tmp_path / "worker-0.0"), 60)
    slurm.stop_controller()
    for line in job.stderr:
        if "unknown" in line:
            break
    assert "Unable to contact slurm controller" in line
    slurm.start_controller()
    (tmp_path / "go").touch()
    finished(job)
    assert job.returncode == 0, job.out + job.err
    assert ": completed" in job.err


def test_flags_reach_tasks_of_every_kind(run, show):
    show(run)


def test_ctrl_c_in_an_allocation_leaves_no_task(run, slurm, program, mark, tmp_path):
    inside = ["salloc", "-N1", "-n2", "--quiet"]
    job = run("--workers", 2, program(HANG), inside=inside, env={"SLURMD_NODENAME": "localhost"})
    poll(lambda: text_of(tmp_path / "worker-0.0") and text_of(tmp_path / "worker-1.0"), 90)
    [launcher] = psutil.Process(job.pid).children()
    launcher.send_signal(signal.SIGINT)
    finished(job)
    assert job.returncode == 130, job.out + job.err
    assert "stopped by SIGINT" in job.err
    poll(lambda: not slurm.run("squeue", "-h", "--steps").strip(), 30)


def test_observed_job_is_shown_and_told_of(run, watch):
    watch(run)


def test_doctor_in_every_task(run, slurm):
    job = finished(run("--workers", 2, "--nodes", 2, "-m", "stratagem", "doctor"))
    assert job.returncode == 0, job.out + job.err
    for worker in range(2):
        front = rf"^\[worker {worker}\] +"
        assert re.search(rf"{front}scheduler: Slurm: rank {worker} of step 0", job.out, re.M)
        assert re.search(rf"{front}worker {1 - worker} at .*: responds", job.out, re.M)
        assert re.search(rf"{front}all-reduce of 4 MB between all workers in", job.out, re.M)
        assert re.search(rf"{front}verdict: all is well", job.out, re.M)
    alone = slurm.run(sys.executable, "-m", "stratagem", "doctor")
    assert "scheduler: Slurm: the controller responds" in alone


def test_what_slurm_refuses_is_said(run, program):
    job = finished(run("--partition", "nowhere", program("")))
    assert job.returncode == 2
    assert (
        "Slurm rejected the command: sbatch: error: invalid partition specified: nowhere" in job.err
    )


def test_step_that_does_not_fit_the_allocation_is_said_at_once(run, program):
    began = time.monotonic()
    inside = ["salloc", "-N1", "-n1", "--quiet"]
    env = {"SLURMD_NODENAME": "localhost"}
    job = finished(run("--workers", 64, program(""), inside=inside, env=env))
    assert job.returncode == 1
    assert "the Slurm step ended with exit code 1 before the job was done" in job.err
    assert time.monotonic() - began < 60


def test_plain_srun_takes_the_roles_by_rank(slurm, mark, program, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    command = ["srun", "-N2", "-n4", sys.executable, "-m", "stratagem", "run", "--task", "by-rank"]
    job = subprocess.run(
        [*command, "--chief", "--workers", "2", "--ps", "1", program(SERVERS)],
        env={**slurm.env, "STRATAGEM_CLUSTER_SECRET_FILE": str(secret)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "[chief 0]  counted 20.0" in job.stdout


def test_file_of_the_examples_is_accepted(slurm):
    file = Path(__file__).parents[2] / "examples" / "jobs" / "slurm.sbatch"
    done = subprocess.run(
        ["sbatch", "--test-only", str(file)],
        env=slurm.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def wrapped(command, tmp_path, before=":", after=":"):
    """Returns a search path on which a command of Slurm does something before and after what it does."""
    path = tmp_path / "bin" / command
    path.parent.mkdir()
    real = f'{shutil.which(command)} "$@"'
    path.write_text(f"#!/bin/sh\n{before}\n{real}\ncode=$?\n{after}\nexit $code\n")
    path.chmod(0o755)
    return f"{path.parent}:{os.environ['PATH']}"


def until(path):
    return f"until [ -e {path} ]; do sleep 0.1; done"


def last_job(slurm):
    return slurm.run("scontrol", "--oneliner", "show", "job").splitlines()[-1]


def text_of(path: Path):
    return path.read_text() if path.exists() else ""
