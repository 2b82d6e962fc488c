"""Saves for which there is no room."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import stratagem as sg

MB = 1_000_000


@pytest.fixture
def small_disk(tmp_path):
    """A file system with 16 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_leaves_the_last_checkpoint_and_nothing_else(small_disk):
    def values(number, megabytes):
        return np.full(megabytes * MB // 4, number, np.float32)

    checkpoint = sg.train.Checkpoint(values=values(1, 5), small=np.zeros(3))
    first = checkpoint.save(small_disk / "ckpt")
    for _ in range(2):
        checkpoint.values = values(2, 14)
        checkpoint.save(small_disk / "ckpt")
        with pytest.raises(OSError, match=r"Cannot write 'values'.*No space left"):
            checkpoint.sync()
        assert [p.name for p in small_disk.iterdir()] == ["ckpt-1"]
    assert sg.train.latest_checkpoint(small_disk) == first
    # A manager can go on with the next one, and has room for it.
    manager = sg.train.CheckpointManager(checkpoint, small_disk, max_to_keep=1)
    checkpoint.values = values(3, 5)
    path = manager.save()
    assert manager.checkpoints == [path]
    checkpoint.values = values(0, 5)
    checkpoint.restore(path)
    assert (checkpoint.values == 3).all()


def test_the_error_comes_with_the_next_call(small_disk):
    checkpoint = sg.train.Checkpoint(values=np.ones(20 * MB // 4, np.float32))
    checkpoint.save(small_disk / "ckpt")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(small_disk / "ckpt")
    options = sg.train.CheckpointOptions(enable_async=False)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(small_disk / "ckpt", options)
    checkpoint.sync()  # said once
    assert list(small_disk.iterdir()) == []


LIMITED = textwrap.dedent("""
    import resource, sys
    import numpy as np
    import stratagem as sg
    directory = sys.argv[1]
    checkpoint = sg.train.Checkpoint(values=np.ones(100_000, np.float32))
    first = checkpoint.save(directory + "/ckpt")
    checkpoint.sync()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    checkpoint.values = np.ones(1_000_000, np.float32)
    checkpoint.save(directory + "/ckpt")
    try:
        checkpoint.sync()
    except OSError as error:
        print(error)
    assert sg.train.latest_checkpoint(directory) == first
""")


def test_a_limit_on_files_is_an_error_too(tmp_path):
    """As a full disk, for whom cannot make one."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "Cannot write 'values'" in result.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-1"]


ENDING = textwrap.dedent("""
    import sys
    import numpy as np
    import stratagem as sg
    checkpoint = sg.train.Checkpoint(values=np.arange(2_000_000, dtype=np.float32))
    print(checkpoint.save(sys.argv[1] + "/ckpt"))
    sys.exit(int(sys.argv[2]))
""")


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_program_that_ends_finishes_its_save(tmp_path, code):
    command = [sys.executable, "-c", ENDING, str(tmp_path), str(code)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stderr
    checkpoint = sg.train.Checkpoint(values=np.zeros(2_000_000, np.float32))
    checkpoint.restore(result.stdout.strip())
    assert (checkpoint.values == np.arange(2_000_000)).all()
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-1"]
