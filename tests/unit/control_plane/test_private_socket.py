"""Sockets for this user's processes: nobody else enters, and nothing stays behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stratagem._src.control_plane.private_socket import PrivateSocket

LONG_AGO = 1_000_000_000


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder if len(os.fsencode(folder)) <= 70 else Path("/tmp")


def test_only_this_user_may_enter(temporary):
    place = PrivateSocket()
    folder = Path(place.path).parent
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    place.close()
    place.close()
    assert not folder.exists()


def test_the_folder_goes_with_the_object():
    place = PrivateSocket()
    folder = Path(place.path).parent
    del place
    assert not folder.exists()


def test_the_path_is_short_enough_wherever_temporary_files_are(monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert len(PrivateSocket().path) < 104


def test_what_a_killed_process_left_behind_goes_with_the_next():
    program = (
        "from stratagem._src.control_plane.private_socket import PrivateSocket as P; import os, signal\n"
        "place = P(); print(os.path.dirname(place.path), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    left = Path(done.stdout.strip())
    used = PrivateSocket()
    for folder in (left, Path(used.path).parent):
        os.utime(folder, (LONG_AGO, LONG_AGO))
    PrivateSocket().close()
    assert not left.exists()
    assert Path(used.path).parent.exists()
    used.close()
