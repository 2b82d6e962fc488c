"""``stratagem run``: from flags to a job and a back end, without starting anything."""

import argparse
import json

import pytest

from stratagem._src.cli import main
from stratagem._src.cli.run import add_command, describe_job
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources

JOBS = [
    JobDescription(PythonProgram("train.py")),
    JobDescription(PythonProgram("a.b", ("-m", "--workers", "9", "x y"), is_module=True)),
    JobDescription(
        PythonProgram("train.py", ("--", "--name=x")),
        TaskCounts(0, 2, chief=True, evaluator=True),
        name="my-job",
        devices_per_worker=4,
        environment={"A": "b c=d", "B": ""},
        resources=TaskResources(cpus=2, memory_bytes=2**31, gpus=1),
        rules=JobRules(1, 2, 0.5),
        quiet=True,
        log_dir="some logs",
        events="events of it.jsonl",
        dashboard="0.0.0.0:8080",
        opentelemetry=True,
    ),
]


@pytest.mark.parametrize("job", JOBS, ids=["short", "module", "full"])
def test_description_as_flags_describes_the_same_job(job):
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    assert describe_job(parser.parse_args(["run", *job_flags(job)])) == job


def run(capsys, *arguments):
    code = main(["run", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ([], None),
        (["--dashboard"], "127.0.0.1:0"),
        (["--dashboard-address", "8080"], "127.0.0.1:8080"),
        (["--dashboard", "--dashboard-address", "node0:80"], "node0:80"),
    ],
)
def test_where_the_dashboard_is(flags, address):
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    assert describe_job(parser.parse_args(["run", *flags, "train.py"])).dashboard == address


def test_dry_run_prints_the_description_and_starts_nothing(capsys, tmp_path):
    flags = ["--workers", "2", "--ps", "1", "--chief", "--env", "A=b=c", "--max-restarts", "3"]
    logs = tmp_path / "logs"
    code, out, _ = run(
        capsys, *flags, "--dry-run", "--log-dir", str(logs), "train.py", "--env", "x"
    )
    said = json.loads(out)
    assert code == 0
    assert said["program"] == {"name": "train.py", "arguments": ["--env", "x"], "is_module": False}
    assert said["tasks"] == {"workers": 2, "ps": 1, "chief": True, "evaluator": False}
    assert said["environment"] == {"A": "b=c"}
    assert said["rules"]["max_restarts"] == 3
    assert not logs.exists()


def test_dry_run_on_hosts_needs_no_secret(capsys, monkeypatch):
    monkeypatch.delenv("STRATAGEM_CLUSTER_SECRET", raising=False)
    place = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "node0:29400"]
    code, out, _ = run(capsys, *place, "--dry-run", "train.py")
    assert (code, out.splitlines()[0]) == (0, "# node 1 of 2, with the rendezvous at node0:29400")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env", "A"], "--env must be NAME=VALUE"),
        (["--memory", "much"], "--memory must be an integer"),
        (["--on", "local", "--nnodes", "2"], "only --on hosts accepts it"),
        (["--on", "local", "--cpus", "2"], "--cpus must be left out with --on local"),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "a:1", "--gpus", "2", "--memory", "1G"],
            "--memory and --gpus must be left out with --on hosts",
        ),
        (["--task", "worker:0", "--nnodes", "2"], "--task cannot be used with --nnodes"),
        (["--led"], "--own-host and --led need --task"),
        (["--on", "slurm", "--task", "worker:0"], "only --on hosts accepts it"),
        (["--max-worker-restarts", "-1"], "--max-worker-restarts must not be negative"),
    ],
)
def test_flags_that_do_not_fit_are_refused(capsys, flags, words):
    code, _, err = run(capsys, *flags, "--dry-run", "train.py")
    assert code == 2
    assert words in err
