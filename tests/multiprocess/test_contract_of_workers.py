"""The contract of all strategies over workers: each process of a cluster runs it, in step."""

import contextlib
from pathlib import Path

import pytest
from task_functions import task

from stratagem.testing import ClusterTestError, run_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(360), pytest.mark.usefixtures("mark")]

TESTS = Path(__file__).parent.parent


def run_contract(folder, arguments):
    """Runs the contract in one worker; returns what pytest returns."""
    project = [
        "--rootdir",
        str(TESTS.parent),
        "--config-file",
        str(TESTS.parent / "pyproject.toml"),
    ]
    output = ["-p", "no:cacheprovider", "--no-header", "--tb=short", "--maxfail=5"]
    with open(Path(folder) / f"{task()[1]}.log", "w") as log, contextlib.redirect_stdout(log):
        return int(pytest.main([*project, *output, str(TESTS / "contract"), *arguments]))


def check_contract(folder, workers, devices_per_worker, *arguments):
    try:
        codes = run_cluster(
            run_contract,
            workers,
            (str(folder), arguments),
            devices_per_worker=devices_per_worker,
            timeout=300,
        )
    except ClusterTestError as error:
        codes = str(error)
    if codes != [0] * workers:
        logs = sorted(folder.glob("*.log"))
        parts = [f"--- worker {log.stem} ---\n{log.read_text()}" for log in logs]
        pytest.fail("\n".join([f"The workers ended with {codes}.", *parts]), pytrace=False)


# What `make test` leaves out runs in a cluster of its own.
_PARTS = pytest.mark.parametrize(
    "part", ["not slow", pytest.param("slow", marks=pytest.mark.slow)], ids=["main", "breadth"]
)


@_PARTS
def test_the_whole_contract_with_two_workers(tmp_path, part):
    check_contract(tmp_path, 2, 1, "-m", part, "-k", "not workers_sharded")


@pytest.mark.slow
def test_each_of_two_workers_has_a_part_of_every_variable(tmp_path):
    check_contract(tmp_path, 2, 1, "-m", "slow or not slow", "-k", "workers_sharded")


@pytest.mark.slow
@_PARTS
def test_two_workers_with_two_devices_each(tmp_path, part):
    check_contract(tmp_path, 2, 2, "-m", f"layout and {part}")


@pytest.mark.slow
def test_three_workers(tmp_path):
    check_contract(tmp_path, 3, 1, "-m", "layout")
