"""Programs for TensorFlow give the same numbers after ``stratagem migrate``."""

import tempfile

import pytest
from running import PROGRAMS, path_of, run_text
from test_programs import compare, stored_results

from stratagem._src.migrate.codemod import migrate_source
from stratagem._src.migrate.findings import Kind

QUICK = {"loss_scaling"}
pytestmark = pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _files_of_programs(tmp_path, monkeypatch):
    """Has what programs write end with the tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, marks=[] if p in QUICK else [pytest.mark.slow]) for p in PROGRAMS],
)
def test_gives_what_tensorflow_gave(program):
    found = migrate_source(path_of(program).read_text())
    assert "tensorflow" not in found.after.partition('"""\n')[2]
    assert {finding.kind for finding in found.findings} <= {Kind.CHECK}
    compare(run_text(program, found.after), stored_results()[program])


def test_most_functions_become_those_of_jax():
    text = migrate_source(path_of("sequence_tagger").read_text()).after
    assert text.count("jnp.") > 20
    assert text.count("sg.nn.") + text.count("sg.math.") < 6


def test_simple_tapes_become_functions():
    texts = [migrate_source(path_of(p).read_text()).after for p in ("detector", "sequence_tagger")]
    assert all("sg.value_and_grad(compute_loss, " in text for text in texts)


@pytest.mark.parametrize("program", PROGRAMS)
def test_is_not_migrated_twice(program):
    once = migrate_source(path_of(program).read_text()).after
    assert migrate_source(once).after == once
