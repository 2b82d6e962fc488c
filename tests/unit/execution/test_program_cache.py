"""The programs of one compiled function, and when they are released."""

import gc
import weakref

import pytest

from stratagem._src.execution.program_cache import ProgramCache


class Needed:
    """What a program needs; the cache drops the program with it."""


class FakeProgram:
    pass


def make_cache():
    return ProgramCache(lambda: None)


def test_a_program_goes_with_what_it_needs():
    cache, needed = make_cache(), Needed()
    cache.add("key", FakeProgram(), [weakref.ref(needed)])
    assert len(cache.get("key")) == 1
    del needed
    gc.collect()
    assert cache.get("key") == []


def test_a_failure_under_the_lock_releases_what_became_stale_meanwhile():
    cache, needed = make_cache(), Needed()
    stale, kept = FakeProgram(), FakeProgram()
    cache.add("stale", stale, [weakref.ref(needed)])
    cache.add("kept", kept, [])
    held = weakref.ref(stale)
    del stale
    others = [needed]
    del needed

    def fail():
        others.clear()  # the garbage collector evicts it here, from another thread perhaps
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.add_fast_path("kept", kept, "signature", fail)
    gc.collect()
    assert held() is None
