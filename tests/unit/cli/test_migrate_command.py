"""``stratagem migrate``: files, diffs, exit codes and errors."""

import os
import pty
import stat
import subprocess
import sys

import pytest

from stratagem._src.cli import main

BEFORE = "import tensorflow as tf\n\ny = tf.exp(x)  # e\n"
AFTER = "import jax.numpy as jnp\n\ny = jnp.exp(x)  # e\n"


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(BEFORE)
    return path


def test_prints_a_diff_that_patch_applies_and_changes_nothing(program, capfd):
    assert main(["migrate", str(program)]) == 0
    diff, report = capfd.readouterr()
    assert program.read_text() == BEFORE
    assert diff.splitlines()[2:] == [
        "@@ -1,3 +1,3 @@",
        "-import tensorflow as tf",
        "+import jax.numpy as jnp",
        " ",
        "-y = tf.exp(x)  # e",
        "+y = jnp.exp(x)  # e",
    ]
    assert report == "1 of 1 files would change; --write changes them\n"


def test_write_replaces_the_file_and_keeps_its_mode(program, capfd):
    program.chmod(0o750)
    link = program.with_name("link.py")
    link.symlink_to(program)
    assert main(["migrate", "--write", str(link)]) == 0
    assert program.read_text() == AFTER
    assert stat.S_IMODE(program.stat().st_mode) == 0o750
    assert link.is_symlink()
    assert [path.name for path in program.parent.iterdir() if path.name.startswith(".")] == []
    assert "1 of 1 files changed" in capfd.readouterr().err


def test_check_tells_by_its_exit_code(program, capfd):
    assert main(["migrate", "--check", str(program)]) == 1
    assert capfd.readouterr().out == ""
    program.write_text(AFTER)
    assert main(["migrate", "--check", str(program)]) == 0


def test_directories_are_walked(program, capfd):
    for folder in (".hidden", "__pycache__", "inner"):
        (program.parent / folder).mkdir()
        (program.parent / folder / "more.py").write_text(BEFORE)
    (program.parent / "notes.txt").write_text(BEFORE)
    assert main(["migrate", "--write", str(program.parent)]) == 0
    assert (program.parent / "inner" / "more.py").read_text() == AFTER
    assert (program.parent / ".hidden" / "more.py").read_text() == BEFORE
    assert "2 of 2 files changed" in capfd.readouterr().err


def test_syntax_error_is_named_before_any_file_changes(program, capfd):
    broken = program.with_name("zz.py")
    broken.write_text("x = 1\nif (:\n")
    assert main(["migrate", "--write", str(program.parent)]) == 2
    assert f"{broken}:2: a file to migrate must be valid Python" in capfd.readouterr().err
    assert program.read_text() == BEFORE


def test_path_that_does_not_exist_is_refused(tmp_path, capfd):
    assert main(["migrate", str(tmp_path / "none.py")]) == 2
    assert "FILE must be a file or a directory" in capfd.readouterr().err


def test_what_is_left_is_reported_with_file_and_line(program, capfd):
    program.write_text(BEFORE + "tf.estimator.Estimator(f)\n")
    assert main(["migrate", str(program)]) == 0
    report = capfd.readouterr().err
    assert f"{program}:4: left: tf.estimator.Estimator is not in Stratagem: use a loop" in report
    assert "1 left, 0 to check" in report


def test_diff_has_colours_on_a_terminal(program):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "stratagem", "migrate", str(program)]
    subprocess.run(command, stdout=follower, stderr=subprocess.DEVNULL, check=True, timeout=90)
    os.close(follower)
    shown = os.read(leader, 10_000).decode()
    os.close(leader)
    assert "\x1b[31m-import tensorflow as tf\x1b[0m" in shown


def test_missing_library_is_named_with_its_extra(program, monkeypatch, capfd):
    for name in [name for name in sys.modules if name.startswith("stratagem._src.migrate.codemod")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert main(["migrate", str(program)]) != 0
    assert "stratagem[migrate]" in capfd.readouterr().err
