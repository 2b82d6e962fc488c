from __future__ import annotations

import gc
import threading

import pytest


def own_threads():
    return [thread.name for thread in threading.enumerate() if "stratagem" in thread.name]


@pytest.fixture(autouse=True)
def no_leaked_threads():
    before = own_threads()
    yield
    if own_threads() != before:
        gc.collect()
    assert own_threads() == before, "threads outlived their iterator"
