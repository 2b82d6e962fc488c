"""What ``import stratagem`` costs beyond ``import jax``, each in a fresh interpreter."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

PROGRAM = (
    "import time; a = time.perf_counter(); import jax; b = time.perf_counter(); "
    "import stratagem; stratagem.Variable; print(b - a, time.perf_counter() - b)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    pairs = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        pairs.append([float(number) * 1e3 for number in done.stdout.split()])
    jax_time, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"import jax {jax_time:.0f} ms, import stratagem {ours:.0f} ms more (limit 100 ms)")


if __name__ == "__main__":
    main()
