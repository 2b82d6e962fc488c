"""One job as plain data."""

import json

import pytest

from stratagem._src.cluster import Task
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources, parse_memory

TRAIN = PythonProgram("train.py", ("--lr", "0.1"))
FULL = JobDescription(
    TRAIN,
    TaskCounts(2, 1, chief=True, evaluator=True),
    name="my-job",
    devices_per_worker=4,
    environment={"A": "b c"},
    resources=TaskResources(cpus=2, memory_bytes=2**31, gpus=1),
    rules=JobRules(1, 2, 3.0),
    quiet=True,
    log_dir="logs",
    events="events.jsonl",
    dashboard="127.0.0.1:8080",
    opentelemetry=True,
)


@pytest.mark.parametrize("job", [JobDescription(TRAIN), FULL], ids=["short", "full"])
def test_it_travels_as_json(job):
    assert JobDescription.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_ranks_go_to_the_chief_the_workers_the_servers_and_the_evaluator():
    assert list(FULL.all_tasks()) == [
        Task("chief", 0),
        Task("worker", 0),
        Task("worker", 1),
        Task("ps", 0),
        Task("evaluator", 0),
    ]


def test_gpus_are_for_tasks_that_compute():
    jobs = ("chief", "worker", "ps", "evaluator")
    assert [FULL.gpus_of(job) for job in jobs] == [None, 1, None, 1]
    in_step = JobDescription(TRAIN, TaskCounts(chief=True), resources=TaskResources(gpus=2))
    assert in_step.gpus_of("chief") == 2


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (PythonProgram("jobs/Train_it.py"), "train-it"),
        (PythonProgram("my_package.train", is_module=True), "train"),
        (PythonProgram("2nd.py"), "job-2nd"),
        (PythonProgram("x" * 80), "x" * 40),
        (PythonProgram("___.py"), "job"),
    ],
)
def test_name_is_made_of_the_program(program, name):
    assert JobDescription(program).name == name
    assert JobDescription(program, name=name).name == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "My Job"}, "'my-job'"),
        ({"devices_per_worker": 0}, "at least 1, got 0"),
        ({"environment": {"A-B": ""}}, "NAME=VALUE"),
        ({"environment": {"TF_CONFIG": "{}"}}, "does not set itself"),
        ({"environment": {"STRATAGEM_CLUSTER_SECRET": "x" * 20}}, "does not set itself"),
        ({"environment": {"STRATAGEM_COLLECTOR": "h:1"}}, "does not set itself"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(LaunchError, match=words) as caught:
        JobDescription(TRAIN, **options)
    assert "x" * 20 not in str(caught.value)


@pytest.mark.parametrize("numbers", [{"cpus": 0}, {"gpus": -1}, {"memory_bytes": 0}])
def test_resources_are_positive(numbers):
    with pytest.raises(LaunchError, match="at least 1"):
        TaskResources(**numbers)


@pytest.mark.parametrize(
    ("text", "number"), [("1K", 2**10), ("3MB", 3 * 2**20), ("4Gi", 2**32), ("1t", 2**40)]
)
def test_memory(text, number):
    assert parse_memory(text) == number


@pytest.mark.parametrize("text", ["", "4", "G", "0G", "1.5G", "-1G", "4GG"])
def test_what_is_no_memory(text):
    with pytest.raises(LaunchError, match="such as 4G"):
        parse_memory(text)
