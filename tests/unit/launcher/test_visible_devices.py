"""Each worker of a host gets GPUs of its own, or the job is refused before anything starts."""

import sys

import pytest

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.visible_devices import VisibleDevices, divide_devices, find_devices
from stratagem._src.launcher import node_runner
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.local_job import run_local_job
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_program import TaskProgram

CUDA = "CUDA_VISIBLE_DEVICES"
FOUR = VisibleDevices("cuda", CUDA, ("0", "1", "2", "3"))


@pytest.fixture
def folder(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "renderD128", "accel0", "accel1"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "plugins", "expected"),
    [
        ({}, ["xla_cuda13"], ("cuda", CUDA, ("0", "1"))),
        ({CUDA: "3,GPU-5f"}, ["xla_cuda13"], ("cuda", CUDA, ("3", "GPU-5f"))),
        ({CUDA: ""}, ["xla_cuda13"], None),
        ({}, ["xla_rocm7"], ("rocm", "HIP_VISIBLE_DEVICES", ("0",))),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, ["rocm"], ("rocm", "ROCR_VISIBLE_DEVICES", ("1", "2"))),
        ({}, ["tpu"], ("tpu", "", ("0", "1"))),
        ({"TPU_PROCESS_BOUNDS": "1,2,1"}, ["tpu"], None),
        ({}, [], None),
        ({"JAX_PLATFORMS": "cpu"}, ["xla_cuda13", "tpu"], None),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ["xla_cuda13"], ("cuda", CUDA, ("0", "1"))),
        ({"JAX_PLATFORMS": "gpu"}, ["xla_cuda13"], ("cuda", CUDA, ("0", "1"))),
    ],
)
def test_devices_are_found_where_jax_finds_them(folder, environment, plugins, expected):
    found = find_devices(environment, folder, plugins)
    assert found == (None if expected is None else VisibleDevices(*expected))


def test_without_device_files_there_are_none(tmp_path):
    assert find_devices({}, tmp_path / "missing", ["xla_cuda13", "tpu"]) is None


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (["worker"], [None]),
        (["worker", "worker"], ["0,1", "2,3"]),
        (["chief", "worker", "evaluator", "worker"], ["0", "1", "2", "3"]),
        (["chief", "worker", "worker", "ps"], ["", "0,1", "2,3", ""]),
    ],
)
def test_tasks_that_compute_share_the_devices(jobs, expected):
    assert [variables.get(CUDA) for variables in divide_devices(FOUR, jobs)] == expected


def test_nothing_changes_without_accelerators():
    assert divide_devices(None, ["worker", "ps"]) == [{}, {}]


@pytest.mark.parametrize("workers", [3, 8])
def test_gpus_that_cannot_be_divided_are_refused(workers):
    with pytest.raises(LaunchError, match=rf"must be divisible .* got 4 GPUs .* {workers} tasks"):
        divide_devices(FOUR, ["worker"] * workers)


def test_a_tpu_host_has_one_worker():
    tpu = VisibleDevices("tpu", "", ("0", "1"))
    assert divide_devices(tpu, ["chief", "worker", "ps"]) == [
        {"JAX_PLATFORMS": "cpu"},
        {},
        {"JAX_PLATFORMS": "cpu"},
    ]
    with pytest.raises(LaunchError, match="belong to one process"):
        divide_devices(tpu, ["worker", "worker"])


def test_started_workers_see_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(node_runner, "find_devices", lambda environment: FOUR)
    code = "import os; d = os.environ['CUDA_VISIBLE_DEVICES']; open(f'{d}.seen', 'x').close()"
    program = TaskProgram(
        (sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {code}"), {}, quiet=True
    )
    result = run_local_job(
        TaskCounts(workers=2), program, Console(sys.stdout, sys.stderr), rules=JobRules()
    )
    assert result.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"0,1.seen", "2,3.seen"}
