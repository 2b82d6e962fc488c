"""Saves whose directory is removed at once, and saves that fail when nobody waits for them."""

import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.checkpoint.format.array_store import ArrayWriter


@pytest.fixture
def slow_writes(monkeypatch):
    """Has saves wait until the test lets them; returns what does, and what tells that one waits."""
    reached, released = threading.Event(), threading.Event()
    finish = ArrayWriter.finish

    def slow(self):
        reached.set()
        assert released.wait(60)
        return finish(self)

    monkeypatch.setattr(ArrayWriter, "finish", slow)
    return reached, released


def test_removing_a_directory_waits_for_a_save_in_it(tmp_path, slow_writes):
    reached, released = slow_writes
    checkpoint = sg.train.Checkpoint(v=sg.Variable(np.zeros(100)))
    link = tmp_path / "link"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")
    checkpoint.save(link / "ckpt")
    assert reached.wait(60)
    shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)  # not held up
    removing = threading.Timer(0, shutil.rmtree, (tmp_path / "real",))
    removing.start()
    assert [path.name for path in (tmp_path / "real").iterdir()]
    released.set()
    removing.join(60)
    checkpoint.sync()
    assert not (tmp_path / "real").exists()


def test_temporary_directories_of_saves(tmp_path):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(np.zeros(1_000_000, np.float32)))
    for _ in range(5):
        with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
            checkpoint.save(f"{directory}/ckpt")
    checkpoint.sync()
    manager = sg.train.CheckpointManager(checkpoint, tmp_path / "managed", max_to_keep=1)
    for _ in range(5):
        manager.save()
        shutil.rmtree(tmp_path / "managed")
    checkpoint.sync()
    assert not (tmp_path / "managed").exists()


PROGRAM = """
import sys
import stratagem as sg
from stratagem._src.checkpoint.format.array_store import ArrayWriter

def fail(self):
    raise OSError(28, "No space left on device")

ArrayWriter.finish = fail
checkpoint = sg.train.Checkpoint(epoch=1)
checkpoint.save(sys.argv[1] + "/ckpt")
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 1),
        ("del checkpoint; sys.exit(0)", 1),
        pytest.param("sys.exit(7)", 7, marks=pytest.mark.slow),
        pytest.param("raise ValueError('mine')", 1, marks=pytest.mark.slow),
        pytest.param("try: checkpoint.sync()\nexcept OSError: pass", 0, marks=pytest.mark.slow),
        pytest.param(
            "try: checkpoint.save(sys.argv[1])\nexcept OSError: pass", 0, marks=pytest.mark.slow
        ),
    ],
)
def test_a_program_does_not_end_well_whose_save_failed(tmp_path, end, code):
    command = [sys.executable, "-c", PROGRAM + end, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == code, ended.stderr
    assert ("exits with an error, because checkpoints were not saved" in ended.stderr) == (
        code != 0
    )
    assert "No space left on device" in ended.stderr
    assert list(Path(tmp_path).iterdir()) == []
