"""One task of a job whose others something else starts."""

import pytest

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.one_task import OneTaskBackend, restrict_gpus
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts

JOB = JobDescription(PythonProgram("train.py"), TaskCounts(2, 1, chief=True))
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMIX_NAMESPACE": "job",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("TF_CONFIG", "RANK", "SLURM_PROCID", "JAX_NUM_PROCESSES", *MPI):
        monkeypatch.delenv(name, raising=False)
    return lambda variables: [monkeypatch.setenv(*item) for item in variables.items()]


@pytest.mark.parametrize(
    ("rank", "task"), [("0", "chief 0"), ("1", "worker 0"), ("2", "worker 1"), ("3", "ps 0")]
)
def test_ranks_are_roles(environment, rank, task):
    environment(MPI | {"OMPI_COMM_WORLD_RANK": rank})
    first = OneTaskBackend("by-rank").preview(JOB).split("\n")[0]
    assert first.startswith(f"# {task}, with the rendezvous at 127.0.0.1:6")


def test_rank_of_torchrun(environment):
    environment({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"})
    first = OneTaskBackend("by-rank").preview(JOB).split("\n")[0]
    assert first == "# worker 0, with the rendezvous at n0:29500"


def test_named_task(environment):
    first = OneTaskBackend("worker:1", "n0:1").preview(JOB).split("\n")[0]
    assert first == "# worker 1, with the rendezvous at n0:1"


@pytest.mark.parametrize(
    ("task", "variables", "words"),
    [
        ("by-rank", {}, "needs a rank from srun, mpirun or torchrun"),
        ("by-rank", {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "TF_CONFIG is set"),
        ("by-rank", MPI | {"OMPI_COMM_WORLD_SIZE": "5"}, "got 4 tasks .* and 5 processes"),
        ("worker:2", {}, "one of chief:0, worker:0, worker:1, ps:0, got 'worker:2'"),
        ("worker", {}, "got 'worker'"),
        ("worker:x", {}, "got 'worker:x'"),
        ("worker:1", {}, "needs --rdzv-endpoint"),
    ],
)
def test_what_cannot_be_is_refused(environment, task, variables, words):
    environment(variables)
    with pytest.raises(LaunchError, match=words):
        OneTaskBackend(task).preview(JOB)


@pytest.mark.parametrize(
    ("ids", "before", "after"),
    [
        (None, "0,1", "0,1"),
        ((1,), "0,1", "1"),
        ((0,), "GPU-a,GPU-b", "GPU-a"),
        ((1,), "3", "3"),
        ((2, 3), None, "2,3"),
    ],
)
def test_visible_gpus(ids, before, after):
    environment = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    assert restrict_gpus(ids, environment).get("CUDA_VISIBLE_DEVICES") == after
