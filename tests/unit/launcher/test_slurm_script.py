"""What is submitted to Slurm, as text."""

import dataclasses
import math
import shlex

import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.slurm import private_secret_file
from stratagem._src.launcher.backends.slurm_batch import batch_script
from stratagem._src.launcher.backends.slurm_options import SlurmOptions
from stratagem._src.launcher.backends.slurm_step import step_command
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources
from stratagem._src.transport.local_secret import local_secret

JOB = JobDescription(
    PythonProgram("train.py", ("--note", "two words; rm")),
    TaskCounts(2, 1, chief=True),
    resources=TaskResources(cpus=2, memory_bytes=3 * 2**30, gpus=1),
    rules=JobRules(grace_seconds=30.0),
    log_dir="/logs",
)


def test_script_asks_for_all_tasks_and_becomes_the_command():
    options = SlurmOptions(
        "gpu", "me", "30", 2, requeue=True, extra=("--comment=a b",), shared_dir="/shared"
    )
    lines = batch_script(JOB, options).split("\n")
    requests = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert requests == [
        "--job-name=train",
        "--output=/logs/%x-%j.out",
        "--ntasks=4",
        "--cpus-per-task=2",
        "--mem-per-cpu=1536M",
        "--gpus-per-task=1",
        "--partition=gpu",
        "--account=me",
        "--time=30",
        "--nodes=2",
        '"--comment=a b"',
        "--requeue",
        "--open-mode=append",
        "--signal=B:TERM@90",
    ]
    assert lines[0] == "#!/bin/sh"
    assert " -m stratagem run --on=slurm --requeue --shared-dir=/shared --name=train" in lines[-1]
    assert lines[-1].startswith("exec ")
    assert lines[-1].endswith("train.py --note 'two words; rm'")


def test_short_job_is_not_signalled_before_its_time_is_over():
    job = JobDescription(PythonProgram("train.py"))  # with five seconds to end
    assert "--signal" not in batch_script(job, SlurmOptions(time_limit="4"))
    assert "--signal=B:TERM@65" in batch_script(job, SlurmOptions(time_limit="5"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", math.inf),
        ("infinite", math.inf),
        ("3", 180.0),
        ("3:30", 210.0),
        ("2:03:30", 7410.0),
        ("1-2", 93600.0),
        ("1-2:03", 93780.0),
        ("1-02:03:04", 93784.0),
    ],
)
def test_time_limits_are_read_as_slurm_does(text, seconds):
    assert SlurmOptions(time_limit=text).time_limit_seconds == seconds


def test_step_has_every_task_and_leaves_failures_to_the_launcher():
    command = step_command(JOB, Address("n1", 29400), 60.0)
    assert command[:2] == ["srun", "--ntasks=4"]
    assert "--kill-on-bad-exit=0" in command
    assert "--rdzv-endpoint=n1:29400" in command
    assert command[-3:] == ["train.py", "--note", "two words; rm"]


@pytest.mark.parametrize("option", ["qos=x", "--ntasks=3", "-n", "--export=ALL"])
def test_options_that_contradict_are_refused(option):
    with pytest.raises(LaunchError, match="--slurm-option must be"):
        SlurmOptions(extra=(option,))


@pytest.mark.parametrize("text", ["x\n#SBATCH --uid=root", "x\ny", "x\ry", "x\x0by", "x\u2028y"])
@pytest.mark.parametrize("flag", ["partition", "account", "time_limit", "shared_dir"])
def test_values_are_one_line(flag, text):
    with pytest.raises(LaunchError, match=f"--{flag.split('_')[0]}.* must be one"):
        SlurmOptions(**{flag: text})
    with pytest.raises(LaunchError, match="--slurm-option must be one line"):
        SlurmOptions(extra=(f"--comment={text}",))
    job = dataclasses.replace(JOB, log_dir=f"/logs/{text}")
    with pytest.raises(LaunchError, match="--log-dir must be one line"):
        batch_script(job, SlurmOptions())


@pytest.mark.parametrize("text", ["gpu --uid=root", 'a"b', "a'b", "a#b", "$HOME", "a;b"])
def test_names_are_one_word(text):
    with pytest.raises(LaunchError, match="--partition must be one word"):
        SlurmOptions(partition=text)


def test_values_stay_values_in_the_script():
    options = SlurmOptions(extra=('--comment=say "hi" --uid=root # \\',))
    job = dataclasses.replace(JOB, log_dir="/my logs/100%j")
    lines = batch_script(job, options).split("\n")
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert all(len(shlex.split(directive)) == 1 for directive in directives)
    assert shlex.split(directives[1]) == ["--output=/my logs/100%%j/%x-%j.out"]
    assert '--comment=say "hi" --uid=root # \\' in shlex.split(" ".join(directives))


def test_secret_is_for_its_owner_and_goes(tmp_path):
    with private_secret_file(tmp_path / "new" / "folder", "the secret") as path:
        assert path.read_text() == "the secret"
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()


def test_folder_of_the_state_that_a_job_made_serves_for_the_local_secret(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with private_secret_file(SlurmOptions().secret_dir(), "the secret"):
        assert local_secret()


def test_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(LaunchError, match="--shared-dir") as caught,
        private_secret_file(tmp_path / "file", "the secret"),
    ):
        pass
    assert "the secret" not in str(caught.value).replace("The secret", "")
