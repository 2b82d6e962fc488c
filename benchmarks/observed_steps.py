"""Times a compiled step that reports its loss, in processes that are observed in different ways.

Each way is a process of its own. They take turns of some milliseconds, so that whatever else the machine
does disturbs all of them alike; while one makes steps the others wait.

    python benchmarks/observed_steps.py record=2     # one such process; it is told what to do on its input
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

import stratagem as sg
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem._src.profiling.task.recording import ProfileRecording

WIDTHS = {"tiny: 2 layers of 8": [8] * 2, "MLP: 4 layers of 256": [256] * 4}
CASES = [(name, num_devices) for num_devices in (1, 2) for name in WIDTHS]
ROWS = 32
SECONDS_BEFORE = 1.2  # so long that an observed process has sent a sample
SECONDS_OF_A_TURN = 0.02


class Way:
    """A process that makes steps when it is told to.

    Args:
        arguments: Of this script: what is recorded.
        environment: What more is in its environment.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: object) -> float:
        """Returns its answer to one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"A process of the benchmark ended with {self._process.wait()}.")
        return float(answer)

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def print_table(make_ways: Callable[[], Mapping[str, Way]], *, starts: int, turns: int) -> None:
    """Prints how long a step takes in each way, and how that compares with the first.

    Args:
        make_ways: Starts the processes, by the name of their way.
        starts: How often that is done, as one process may be quicker than the next by chance.
        turns: How many turns each has with each kind of step.
    """
    times: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in CASES}
    for _ in range(starts):
        ways = make_ways()
        try:
            for case, found in times.items():
                found += _take_turns(ways, case, turns)
        finally:
            for way in ways.values():
                way.end()
    first, *others = ways
    columns = "".join(f" {other:>12} ratio" for other in others)
    print(f"{'step':<24} {'devices':>7} {first:>12}{columns}")
    for (name, num_devices), rounds in times.items():
        base = statistics.median(times[first] for times in rounds)
        line = f"{name:<24} {num_devices:>7} {base * 1e6:>9.1f} us"
        for other in others:
            ratio = statistics.median(times[other] / times[first] for times in rounds)
            line += f" {base * ratio * 1e6:>9.1f} us {ratio:>5.2f}"
        print(line)


def _take_turns(
    ways: Mapping[str, Way], case: tuple[str, int], turns: int
) -> Iterator[dict[str, float]]:
    name, num_devices = case
    seconds = min(way.ask("prepare", num_devices, name) for way in ways.values())
    num_steps = max(1, int(SECONDS_OF_A_TURN / seconds))
    for turn in range(turns):
        order = list(ways) if turn % 2 else list(reversed(ways))
        yield {name: ways[name].ask("time", num_steps) for name in order}


def make_step(num_devices: int, widths: Sequence[int]) -> Callable[[], jax.Array]:
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    with strategy.scope():
        layers = [
            sg.Variable(np.eye(w, dtype=np.float32), aggregation=sg.VariableAggregation.MEAN)
            for w in widths
        ]
    x = np.random.default_rng(0).normal(size=(ROWS, widths[0])).astype(np.float32)
    dataset = sg.data.Dataset.from_tensors(x).repeat()
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))

    def replica_step(x: jax.Array) -> jax.Array:
        def loss_fn() -> jax.Array:
            y = x
            for layer in layers:
                y = y @ layer
            return ((y - 1) ** 2).mean()

        loss, gradients = sg.value_and_grad(loss_fn, layers)()
        for layer, gradient in zip(layers, gradients, strict=True):
            layer.assign_sub(1e-3 * gradient)
        return loss

    step = sg.function(
        lambda x: strategy.reduce("MEAN", strategy.run(replica_step, args=(x,)), axis=None)
    )

    def run() -> jax.Array:
        loss = step(batch)
        sg.train.report(loss=loss)
        return loss

    return run


def make_steps_when_told(recorded: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    """Does what the lines of the input say, and answers each with seconds per step."""
    with contextlib.ExitStack() as recording:
        for line in sys.stdin:
            word, number, *name = line.split(maxsplit=2)
            if word == "prepare":
                recording.close()
                run = make_step(int(number), WIDTHS[name[0].rstrip()])
                run().block_until_ready()
                began, num_steps = time.perf_counter(), 0
                while time.perf_counter() - began < SECONDS_BEFORE:
                    run().block_until_ready()
                    num_steps += 1
                seconds = SECONDS_BEFORE / num_steps
                recording.enter_context(recorded())
            else:
                num_steps = int(number)
                began = time.perf_counter()
                for _ in range(num_steps):
                    loss = run()
                loss.block_until_ready()
                seconds = (time.perf_counter() - began) / num_steps
            print(seconds, flush=True)


@contextlib.contextmanager
def record(level: int) -> Iterator[None]:
    recording = ProfileRecording(ProfilerOptions(host_tracer_level=level))
    try:
        yield
    finally:
        recording.end("worker 0")


def main() -> None:
    sg.config.set_num_cpu_devices(2)
    what, _, level = (sys.argv[1] if len(sys.argv) > 1 else "").partition("=")
    if what == "record":
        make_steps_when_told(lambda: record(int(level)))
    elif what == "have-recorded":
        with record(2):
            pass
        make_steps_when_told(contextlib.nullcontext)
    else:
        make_steps_when_told(contextlib.nullcontext)


if __name__ == "__main__":
    main()
