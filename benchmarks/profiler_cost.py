"""Overhead of ``sg.profiler`` on a step: while it records, and after it has recorded.

The same compiled step is made by a process that has never recorded a profile, by one that has recorded one
before, and by two that record, with ``host_tracer_level`` 1 and 2. What a place costs where a profile would
note something, while none is recorded, is shown too.
"""

from __future__ import annotations

import argparse
import timeit

from observed_steps import Way, print_table

from stratagem._src.telemetry.measurement.recorder import span


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--turns", type=int, default=40)
    flags = parser.parse_args()
    print_table(
        lambda: {
            "never": Way(),
            "not now": Way("have-recorded"),
            "level 1": Way("record=1"),
            "level 2": Way("record=2"),
        },
        starts=flags.starts,
        turns=flags.turns,
    )
    number = 100_000
    seconds = min(timeit.repeat(lambda: span("a pull", "pull"), number=number)) / number
    print(f"one instrumentation point while nothing is recorded: {seconds * 1e9:.0f} ns")


if __name__ == "__main__":
    main()
