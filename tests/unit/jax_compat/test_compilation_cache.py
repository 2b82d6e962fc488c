"""Compiled programs are kept whole or not at all, and only where nobody else can write."""

import errno
import os
import threading
import time

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache, compiler

from stratagem._src.control_plane.persistent_cache import enable_persistent_cache
from stratagem._src.jax_compat.compilation_cache import ProgramFiles, cache_programs_in


@pytest.fixture
def _jax_as_before(monkeypatch):
    for module, name in (
        (compilation_cache, "_cache"),
        (compilation_cache, "_cache_initialized"),
        (compiler, "_cache_write"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    yield
    jax.clear_caches()


def programs(folder):
    return list(folder.rglob("*.program"))


def test_a_corrupt_program_is_forgotten(tmp_path):
    files = ProgramFiles(tmp_path)
    files.put("key", b"program" * 100)
    [path] = programs(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert files.get("key") is None
    assert not path.exists()
    files.put("key", b"another")
    assert files.get("key") == b"another"


def test_readers_see_whole_programs_while_others_write(tmp_path):
    values = [bytes([n]) * 500_000 for n in range(3)]
    stopped = threading.Event()

    def write(value):
        while not stopped.is_set():
            ProgramFiles(tmp_path).put("key", value)
            for path in programs(tmp_path):
                path.unlink(missing_ok=True)

    threads = [threading.Thread(target=write, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    try:
        seen = {ProgramFiles(tmp_path).get("key") for _ in range(200)}
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert seen <= {None, *values}
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_was_used_least_recently_makes_room(tmp_path):
    files = ProgramFiles(tmp_path, max_bytes=2_500)
    for age, key in ((300, "old"), (200, "newer")):
        files.put(key, b"x" * 1_000)
        os.utime(files._file(key), (time.time() - age, time.time() - age))
    assert files.get("old")  # it is the one used last now
    files.put("newest", b"x" * 1_000)
    assert files.get("newer") is None
    assert files.get("old")
    assert files.get("newest")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    ProgramFiles(tmp_path / "missing").put("key", b"program")
    assert ProgramFiles(tmp_path / "missing").get("key") is None


def test_a_full_disk_does_not_keep_parts_of_programs(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    ProgramFiles(tmp_path).put("key", b"program")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_jax_as_before")
def test_jax_finds_programs_that_another_has_compiled(tmp_path, monkeypatch):
    assert cache_programs_in(tmp_path)  # if not, JAX has changed: nothing is cached
    # JAX's own cache would not write in any process but the first.
    monkeypatch.setattr(jax._src.distributed.global_state, "process_id", 1)
    events = []

    def listen(event, **_):
        events.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        for _ in range(2):
            jax.clear_caches()
            assert jax.jit(lambda x: jnp.sin(x) * 3)(0.0) == 0.0
    finally:
        jax._src.monitoring.unregister_event_listener(listen)
    assert programs(tmp_path)
    assert "/jax/compilation_cache/cache_hits" in events


@pytest.mark.usefixtures("_jax_as_before")
def test_a_changed_jax_caches_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "_cache_write", lambda cache_key: None)
    assert not cache_programs_in(tmp_path)


@pytest.mark.usefixtures("_jax_as_before")
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation_cache, "_cache", None)
    enable_persistent_cache()
    [folder] = (tmp_path / "stratagem/programs").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert compilation_cache._cache._path == folder
    monkeypatch.setattr(compilation_cache, "_cache", None)
    folder.chmod(0o777)
    enable_persistent_cache()
    assert compilation_cache._cache is None
    assert "no other user may write" in caplog.text
