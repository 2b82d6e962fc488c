"""Directories that appear when they are complete, as other processes see them before."""

from stratagem._src.checkpoint.format.directories import NewDirectory, is_visible


def test_another_process_sees_what_was_begun(tmp_path):
    new = NewDirectory(tmp_path / "ckpt-1")
    assert is_visible(new.hidden, new.token, seconds=0.0)
    (new.hidden / "data").touch()
    new.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]


def test_a_directory_of_the_same_name_on_another_disk_is_not_taken_for_it(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = NewDirectory(tmp_path / "here" / "ckpt-1")
    there = NewDirectory(tmp_path / "there" / "ckpt-1")
    assert not is_visible(there.hidden, here.token, seconds=0.2)
    there.discard()
    assert not is_visible(there.hidden, here.token, seconds=0.2)
    here.discard()
