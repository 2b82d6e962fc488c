"""Compiled programs are kept whole or not at all, and only where nobody else can write."""

import errno
import os
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache, compiler

from stratagem._src.jax_compat.compilation_cache import ProgramFiles, cache_programs_in
from stratagem._src.mesh.persistent_cache import enable_persistent_cache


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


def test_the_size_is_bounded_also_in_a_process_that_writes_much(tmp_path):
    files = ProgramFiles(tmp_path, max_bytes=5_000)
    for number in range(40):
        files.put(str(number), b"x" * 900)
    assert sum(path.stat().st_size for path in programs(tmp_path)) <= 5_000
    assert files.get("39")


_STEP = """
import jax, jax.numpy as jnp
import stratagem as sg
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
step = sg.function(lambda: strategy.reduce("SUM", strategy.run(lambda: jnp.arange(3.0) * 2)))
print(step().tolist(), events.count("/jax/compilation_cache/cache_hits") > 0)
"""


def _run_step(folder, **environment):
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", _STEP], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr


def test_a_second_process_loads_the_programs_of_the_first(tmp_path):
    assert _run_step(tmp_path)[0] == "[0.0, 4.0, 8.0] False"
    assert programs(tmp_path)
    assert _run_step(tmp_path) == ("[0.0, 4.0, 8.0] True", "")


def test_the_cache_can_be_turned_off(tmp_path):
    _run_step(tmp_path, JAX_ENABLE_COMPILATION_CACHE="0")
    assert not programs(tmp_path)


def test_a_folder_chosen_for_the_cache_of_jax_is_left_to_jax(tmp_path):
    chosen = tmp_path / "chosen"
    _run_step(
        tmp_path,
        JAX_COMPILATION_CACHE_DIR=str(chosen),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    )
    assert not programs(tmp_path)
    assert list(chosen.iterdir())


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
