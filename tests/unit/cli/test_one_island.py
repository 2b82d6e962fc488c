"""``stratagem run --island``: one island on any back end, up to what is submitted."""

import json
import shlex

import pytest

from stratagem._src.cli import main

ISLAND = ["--islands", "2", "--island", "1", "--island-server", "node0:7000"]
VARIABLES = {
    "STRATAGEM_ISLANDS": "2",
    "STRATAGEM_ISLAND": "1",
    "STRATAGEM_ISLANDS_SERVER": "node0:7000",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("STRATAGEM_ISLANDS_SECRET", "STRATAGEM_ISLANDS_SECRET_FILE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def secret_file(monkeypatch, tmp_path):
    """Sets the secret of the islands, in a file, and returns its path."""
    path = tmp_path / "secret"
    path.write_text("the secret of these islands\n")
    monkeypatch.setenv("STRATAGEM_ISLANDS_SECRET_FILE", str(path))
    return str(path)


def dry_run(capsys, *flags):
    code = main(["run", "--dry-run", *flags, "train.py"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_on_hosts(capsys, secret_file):
    place = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "node0:29400"]
    code, out, _ = dry_run(capsys, *ISLAND, *place)
    said = json.loads(out.partition("\n")[2])
    assert (code, said["name"]) == (0, "train-island-1")
    assert said["environment"] == VARIABLES | {"STRATAGEM_ISLANDS_SECRET_FILE": secret_file}


def test_by_slurm(capsys, secret_file):
    code, out, _ = dry_run(capsys, "--on", "slurm", "--workers", "4", "--nodes", "2", *ISLAND)
    assert code == 0
    assert "#SBATCH --job-name=train-island-1\n" in out
    assert "#SBATCH --ntasks=4\n" in out
    flags = shlex.split(out.splitlines()[-1])
    for name, value in VARIABLES.items():
        assert f"--env={name}={value}" in flags
    assert f"--env=STRATAGEM_ISLANDS_SECRET_FILE={secret_file}" in flags
    assert "the secret of these islands" not in out
    # In the allocation the command runs one ordinary job: what it needs is in the variables.
    assert not any(flag.startswith("--island") for flag in flags)


def test_by_kubernetes(capsys, secret_file):
    code, out, _ = dry_run(capsys, "--on", "kubernetes", "--image", "image", *ISLAND)
    assert code == 0
    assert "train-island-1" in out
    for name, value in VARIABLES.items():
        assert f"--env={name}={value}" in out
    assert "the secret of these islands" not in out


def test_a_secret_for_a_scheduler_must_be_in_a_file(capsys, monkeypatch):
    monkeypatch.setenv("STRATAGEM_ISLANDS_SECRET", "the secret of these islands")
    assert dry_run(capsys, *ISLAND)[0] == 0
    code, out, err = dry_run(capsys, "--on", "slurm", *ISLAND)
    assert (code, out) == (2, "")
    assert "set STRATAGEM_ISLANDS_SECRET_FILE to a path that every task sees" in err


def test_a_secret_is_needed(capsys):
    code, _, err = dry_run(capsys, *ISLAND)
    assert code == 2
    assert "STRATAGEM_ISLANDS_SECRET" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--islands", "2", "--island", "0"], "given together to run one island, got 2, 0, None"),
        (["--island-server", "a:1"], "given together"),
        ([*ISLAND, "--island", "2"], "--island must be from 0 to --islands - 1, got 2 of 2"),
        ([*ISLAND, "--ps", "1", "--chief"], "--ps cannot be used with --islands"),
        ([*ISLAND, "--island-server", "nowhere"], "nowhere"),
        (["--islands", "2", "--on", "slurm"], "with --island and --island-server"),
    ],
)
def test_flags_that_do_not_fit(capsys, secret_file, flags, words):
    code, _, err = dry_run(capsys, *flags)
    assert code == 2
    assert words in err
