"""Time of ``import stratagem`` on top of ``import jax``, each in a fresh interpreter.

Both are compiled to bytecode before, as pip does when it installs a package.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

PROGRAM = (
    "import time; a = time.perf_counter(); import jax; b = time.perf_counter(); "
    "import stratagem; stratagem.Variable; print(b - a, time.perf_counter() - b)"
)


def import_times(environment: dict[str, str]) -> list[float]:
    """Returns milliseconds for JAX, and for Stratagem after it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return [float(number) * 1e3 for number in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        pairs = [import_times(environment) for _ in range(rounds + 1)][1:]
    jax_time, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"import jax {jax_time:.0f} ms, import stratagem {ours:.0f} ms more (limit 100 ms)")


if __name__ == "__main__":
    main()
