from __future__ import annotations

import gc
import threading

import pytest


@pytest.fixture(autouse=True)
def no_leaked_threads():
    yield
    gc.collect()
    left = [thread.name for thread in threading.enumerate() if "stratagem" in thread.name]
    assert not left, f"threads outlived their iterator: {left}"
