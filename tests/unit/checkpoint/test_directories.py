"""Directories that appear when they are complete, as other processes see them before."""

import threading
import time

import pytest

from stratagem._src.checkpoint.format import directories
from stratagem._src.checkpoint.format.directories import (
    NameTakenError,
    NewDirectory,
    is_visible,
    remove_leftovers,
)


def test_another_process_sees_what_was_begun(tmp_path):
    new = NewDirectory(tmp_path / "ckpt-1")
    assert is_visible(new.hidden, new.token)
    (new.hidden / "data").touch()
    new.publish({}, time.time_ns())
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]


def test_a_directory_of_the_same_name_on_another_disk_is_not_taken_for_it(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = NewDirectory(tmp_path / "here" / "ckpt-1")
    there = NewDirectory(tmp_path / "there" / "ckpt-1")
    assert not is_visible(there.hidden, here.token)
    there.discard()
    assert not is_visible(there.hidden, here.token)
    here.discard()


def test_a_search_for_leftovers_takes_no_name_from_a_save_that_begins(tmp_path):
    ended = threading.Event()

    def search():
        while not ended.is_set():
            remove_leftovers(tmp_path)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        for _ in range(300):
            NewDirectory(tmp_path / "ckpt", replace=True).discard()
    finally:
        ended.set()
        thread.join()


def test_a_directory_that_another_save_writes_is_refused_after_a_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "_CLEANUP_SECONDS", 0.1)
    first = NewDirectory(tmp_path / "ckpt", replace=True)
    with pytest.raises(NameTakenError, match="another process is writing it"):
        NewDirectory(tmp_path / "ckpt", replace=True)
    first.discard()
    NewDirectory(tmp_path / "ckpt", replace=True).discard()
