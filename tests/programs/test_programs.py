"""Programs for TensorFlow run here as they are, but for the import line, with the same losses."""

import functools
import json
import tempfile

import numpy as np
import pytest
from running import PROGRAMS, RESULTS, path_of, run_as_script, run_here, translated

QUICK = {"central_storage", "language_model", "loss_scaling"}
pytestmark = pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")
LONG = {"parameter_servers"}  # two clusters of five processes each
CASES = [
    pytest.param(
        program,
        marks=[
            *([] if program in QUICK else [pytest.mark.slow]),
            *([pytest.mark.timeout(450)] if program in LONG else []),
        ],
    )
    for program in PROGRAMS
]


@functools.cache
def stored_results():
    return json.loads(RESULTS.read_text())


@pytest.fixture(autouse=True)
def _files_of_programs(tmp_path, monkeypatch):
    """Has what programs write end with the tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def compare(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        numbers = np.asarray(value)
        if numbers.dtype.kind == "f":
            np.testing.assert_allclose(found[name], numbers, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("program", CASES)
def test_gives_what_tensorflow_gave(program):
    compare(run_here(program), stored_results()[program])


@pytest.mark.slow
def test_runs_as_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(translated("loss_scaling"))
    compare(run_as_script(script), stored_results()["loss_scaling"])


def test_programs_are_many_and_of_some_length():
    assert len(PROGRAMS) >= 8
    assert stored_results().keys() == set(PROGRAMS)
    assert all(80 <= len(path_of(p).read_text().splitlines()) <= 300 for p in PROGRAMS)


@pytest.mark.peer("tensorflow", "tensorboard")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gives_what_tensorflow_gives(program):
    compare(run_here(program), run_as_script(path_of(program)))
