"""``stratagem``: commands, help and keys."""

import os
import pty
import subprocess
import sys

import pytest

from stratagem._src.cli import main
from stratagem._src.cli.top import Keyboard


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["rnu", "train.py"], "Did you mean 'run'?"),
        (["docter"], "Did you mean 'doctor'?"),
        (["xyzzy"], "Use one of run, top, view, timeline, doctor, migrate, island-server."),
        (["train.py", "--lr", "1"], "write: stratagem run train.py --lr 1"),
    ],
)
def test_an_unknown_command_is_a_usage_error_with_a_hint(given, hint, capsys):
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


def test_help_shows_groups_of_flags_and_no_internal_ones(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: stratagem run [flags] PROGRAM [arguments]\n")
    assert "\nislands:\n" in shown
    assert "\nacross nodes (--on hosts):\n" in shown
    assert "--led" not in shown
    assert "--own-host" not in shown
    assert "no further flags" not in shown


def test_the_version_needs_no_jax():
    program = (
        "import sys; from stratagem._src.cli import main\n"
        "try: main(['--version'])\n"
        "finally: print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "False"


@pytest.fixture
def terminal(monkeypatch):
    here, there = pty.openpty()
    with open(there) as keys:
        monkeypatch.setattr(sys, "stdin", keys)
        yield here
    os.close(here)


def test_a_key_is_read_without_enter(terminal):
    with Keyboard() as keyboard:
        assert not keyboard.pressed("q", 0.0)
        os.write(terminal, b"x")
        assert not keyboard.pressed("q", 0.01)
        os.write(terminal, b"xq")
        assert keyboard.pressed("q", 10.0)


def test_without_a_terminal_no_key_is_pressed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with Keyboard() as keyboard:
        assert not keyboard.pressed("q", 0.0)
