"""Every example runs as its docstring says, and learns what it says."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.timeout(300)


def run(*arguments, timeout=240):
    """Runs Python on the CPU, with no number of devices set in advance; returns what it prints."""
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=env | {"JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def launch(*arguments):
    """Runs a job of several processes; returns what they print."""
    return run("-m", "stratagem", "run", *arguments)


def numbers(pattern, printed):
    found = [float(number) for number in re.findall(pattern, printed)]
    assert found, printed
    return found


def accuracies(printed):
    return numbers(r"test accuracy ([\d.]+)%", printed)


def losses(printed):
    return numbers(r"loss (?:of its last batch )?([\d.]+)", printed)


# --- the loop of `make demo` ----------------------------------------------------------------------


@pytest.mark.slow
def test_the_loop_resumes_where_it_was(tmp_path):
    loop = EXAMPLES / "digits_loop.py"
    first = run(loop, "--epochs", 2, "--directory", tmp_path / "interrupted")
    second = run(loop, "--epochs", 4, "--directory", tmp_path / "interrupted")
    assert "goes on after epoch 2" in second
    assert len(losses(first)) == len(losses(second)) == 2
    assert losses(second)[-1] < losses(first)[0] / 4
    assert accuracies(second)[0] > 90
    assert "try next" in second


@pytest.mark.slow
def test_the_resumed_loop_ends_as_one_that_was_not_interrupted(tmp_path):
    loop = EXAMPLES / "digits_loop.py"
    for epochs in (1, 3):
        resumed = run(loop, "--epochs", epochs, "--directory", tmp_path / "resumed")
    whole = run(loop, "--epochs", 3, "--directory", tmp_path / "whole")
    assert losses(resumed) == losses(whole)[1:]
    assert accuracies(resumed) == accuracies(whole)


@pytest.mark.slow
def test_the_loop_joins_the_workers_of_another_launcher(tmp_path):
    # As torchrun sets them, for a job of one worker.
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with mock.patch.dict(os.environ, variables):
        printed = run(EXAMPLES / "digits_loop.py", "--epochs", 1, "--directory", tmp_path)
    assert "MultiWorkerMirroredStrategy" in printed


@pytest.mark.slow
def test_the_loop_in_two_workers_has_the_losses_of_one(tmp_path):
    one = run(EXAMPLES / "digits_loop.py", "--epochs", 2)
    flags = ["--epochs", 2, "--directory", tmp_path]
    two = launch("--workers", 2, EXAMPLES / "digits_loop.py", *flags)
    for worker in range(2):
        lines = [line for line in two.splitlines() if line.startswith(f"[worker {worker}]")]
        assert losses("\n".join(lines)) == pytest.approx(losses(one), abs=2e-4)


@pytest.mark.slow
def test_workers_need_a_directory_that_all_see():
    arguments = ["-m", "stratagem", "run", "--workers", 1, EXAMPLES / "digits_loop.py"]
    with pytest.raises(AssertionError, match="give them a --directory that all of them see"):
        run(*arguments)


def test_the_training_code_of_the_loop_has_at_most_40_lines():
    source = (EXAMPLES / "digits_loop.py").read_text()
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    train = functions["train"]
    lines = source.splitlines()[train.lineno - 1 : train.end_lineno]
    assert sum(bool(line.strip()) for line in lines) <= 40


def test_what_the_loop_says_to_try_next_exists():
    source = (EXAMPLES / "digits_loop.py").read_text()
    named = re.findall(r"examples/(\w+\.(?:py|md))", source)
    assert {"digits_fit.py", "digits_flax.py", "digits_servers.py", "language_model.py"} < set(
        named
    )
    for name in named:
        assert (EXAMPLES / name).exists()


# --- the others, shortly ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_fit", "digits_flax"])
def test_other_forms_learn(name):
    printed = run(EXAMPLES / f"{name}.py", "--epochs", 4)
    assert accuracies(printed)[0] > 90


@pytest.mark.slow
def test_the_language_model_learns():
    printed = run(EXAMPLES / "language_model.py", "--steps", 25, "--write", 20)
    assert losses(printed)[-1] < 5.6  # guessing: 5.85
    assert "Once there lived" in printed


# --- whole ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_loop", "digits_fit", "digits_flax"])
def test_digits_are_learned(name):
    assert accuracies(run(EXAMPLES / f"{name}.py"))[0] > 96


@pytest.mark.slow
def test_digits_are_learned_with_parameter_servers():
    printed = launch("--workers", 2, "--ps", 1, "--chief", EXAMPLES / "digits_servers.py")
    assert accuracies(printed)[0] > 95


@pytest.mark.slow
def test_digits_are_learned_with_keras_in_two_workers():
    one, other = accuracies(launch("--workers", 2, EXAMPLES / "digits_fit.py"))
    assert one == other > 95


@pytest.mark.slow
def test_the_language_model_is_the_same_in_one_process_and_in_two():
    mirrored = losses(run(EXAMPLES / "language_model.py", "--write", 0))
    assert mirrored[-1] < 2.2
    printed = launch("--workers", 2, EXAMPLES / "language_model.py", "--write", 0)
    for worker in range(2):
        lines = [line for line in printed.splitlines() if line.startswith(f"[worker {worker}]")]
        assert losses("\n".join(lines))[:4] == pytest.approx(mirrored[:4], abs=0.02)
