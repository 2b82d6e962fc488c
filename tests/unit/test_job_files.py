"""The job files of ``examples/jobs`` and the commands of the pages about schedulers are true."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kubernetes_schema import check
from stratagem._src.cli import main

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "examples" / "jobs"
PAGES = [
    ROOT / "docs" / f"{name}.md" for name in ("launching", "slurm", "kubernetes", "ray", "mpirun")
]
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a task by rank needs to know.
RANK = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "n"}


def commands(text):
    """Yields the arguments of every ``stratagem run`` in a shell text."""
    for line in text.replace("\\\n", " ").split("\n"):
        found = re.match(r"^[^#]*?\bstratagem (run .*)$", line)
        if found:
            yield shlex.split(found[1], comments=True)


TEXTS = [(page.name, block[1]) for page in PAGES for block in _BLOCK.finditer(page.read_text())]
TEXTS += [(path.name, path.read_text()) for path in sorted(JOBS.glob("*.s*"))]
COMMANDS = [(name, command) for name, text in TEXTS for command in commands(text)]


def test_there_are_commands_of_every_page():
    assert {name for name, _ in COMMANDS} >= {page.name for page in PAGES}
    assert {"slurm.sbatch", "mpirun.sh", "torchrun.sh"} <= {name for name, _ in COMMANDS}


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_command_describes_a_job(name, command, monkeypatch, capsys):
    for variable, text in {**RANK, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}.items():
        monkeypatch.setenv(variable, text)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    number = command.index("-m") if "-m" in command else 1
    assert main([command[0], "--dry-run", *command[1:]]) == 0, (number, capsys.readouterr().err)


def test_kubernetes_file_is_what_its_command_prints_and_fits_the_schema(capsys):
    flags = "--no-jobset --image registry.example.com/train:1 --chief --workers 2 --ps 1 --cpus 2"
    flags += " --memory 4G --gpus 1"
    assert main(["run", "--on", "kubernetes", *flags.split(), "--dry-run", "/app/train.py"]) == 0
    text = (JOBS / "kubernetes.yaml").read_text()
    assert capsys.readouterr().out == text
    plain = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    for manifest in json.loads(plain)["items"]:
        check(manifest)


def test_slurm_file_asks_for_the_tasks_of_its_command():
    text = (JOBS / "slurm.sbatch").read_text()
    assert "#SBATCH --ntasks=4" in text  # a chief, two workers, a server
    last = text.strip().split("\n")[-1]
    assert "--chief --workers=2 --ps=1" in last


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.s*")), ids=lambda path: path.name)
def test_shell_understands(path):
    subprocess.run(["sh", "-n", path], check=True)
