"""How many examples a second a training loop gets through; imports no library that is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

WINDOWS = 5
WARM_UP_STEPS = 10


def examples_per_second(
    step: Callable[[], object],
    wait: Callable[[], object],
    batch: int,
    seconds: float,
    agreed: Callable[[int], int] = int,
) -> float:
    """Returns the median rate of several windows.

    Args:
        step: Does one step, input included, without waiting for it.
        wait: Waits for the last step, and reads its loss.
        batch: The global batch.
        seconds: How long all windows take together, about.
        agreed: Makes one number of steps of what each process proposes.
    """
    step()
    wait()
    start = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        step()
    wait()
    per_step = (time.perf_counter() - start) / WARM_UP_STEPS
    steps = agreed(max(3, int(seconds / WINDOWS / per_step)))
    rates = []
    for _ in range(WINDOWS):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        rates.append(batch * steps / (time.perf_counter() - start))
    return statistics.median(rates)
