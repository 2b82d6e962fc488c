"""``phases``: the networks that between_hosts.py makes one after the other, for what it measures in each.

Imports nothing but the standard library: peers run it in interpreters of their own.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = "BENCHMARK_PHASES"
_SECONDS = 900.0


def phases() -> Iterator[int]:
    """Yields the number of each network once it is there; just 0 where there is one network."""
    if FOLDER not in os.environ:
        yield 0
        return
    folder = Path(os.environ[FOLDER])
    number = 0
    deadline = time.monotonic() + _SECONDS
    while not (folder / "end").exists() and time.monotonic() < deadline:
        if (folder / str(number)).exists():
            yield number
            number += 1
        time.sleep(0.05)
