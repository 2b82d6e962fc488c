"""Recovery time of synchronous workers: from the kill of one to the next step of all.

An elastic job, whose other workers go on, against a job that its launcher starts again from the last
checkpoint, in one run. What saves cost is in ``checkpoint.py``.

    python benchmarks/recovery.py [--rounds N] [--workers N ...]
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import os, sys, time
import numpy as np
import stratagem as sg

folder, elastic = sys.argv[1], sys.argv[2] == "elastic"
strategy = sg.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
file = open(f"{folder}/{task}-{os.getpid()}", "w", buffering=1)
dataset = sg.data.Dataset.from_tensor_slices(np.ones((60, 4), np.float32)).batch(30).repeat()
with strategy.scope():
    w = sg.Variable(np.zeros(4, np.float32), aggregation=sg.VariableAggregation.SUM)
manager = sg.train.CheckpointManager(sg.train.Checkpoint(w=w), f"{folder}/checkpoints", max_to_keep=1)
if not elastic:
    manager.restore_or_initialize()

@sg.function
def step(batch):
    strategy.run(lambda x: w.assign_add(x.sum(0)), args=(batch,))

@sg.train.elastic(strategy)
def train(loop):
    for batch in loop.batches(dataset):
        step(batch)
        file.write(f"{time.time()}\\n")
        if not elastic and loop.step % 10 == 0:
            manager.save()
        time.sleep(0.02)

train()
"""


class Job:
    """A job that trains until it is ended."""

    def __init__(self, folder: Path, number: int, *, elastic: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        program = self.folder.parent / "program.py"
        program.write_text(PROGRAM)
        flags = (
            ["--workers", f"1:{number}", "--max-worker-restarts", "0"]
            if elastic
            else ["--workers", str(number), "--max-restarts", "1"]
        )
        kind = "elastic" if elastic else "restarted"
        command = [sys.executable, "-m", "stratagem", "run", *flags, program, self.folder, kind]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def steps(self) -> dict[tuple[int, int], list[float]]:
        """Returns when each process made its steps, by task and process id."""
        found = {}
        for file in self.folder.glob("*-*"):
            task, process = map(int, file.name.split("-"))
            lines = file.read_text().split("\n")[:-1]
            found[task, process] = [float(line) for line in lines]
        return found

    def wait_for_steps(self, number: int, processes: int, since: float = 0.0) -> float:
        """Returns when so many processes had made so many steps after a moment."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            reached = sorted(
                times[number - 1]
                for every in self.steps().values()
                if len(times := [t for t in every if t > since]) >= number
            )
            if len(reached) >= processes:
                return reached[processes - 1]
            time.sleep(0.01)
        raise TimeoutError(
            f"{processes} workers did not make {number} steps within 120 s. The job's last lines:\n"
            f"{self.log.read_text()[-4000:]}"
        )

    def kill(self, task: int) -> float:
        """Kills a worker; returns when."""
        [process] = [process for found, process in self.steps() if found == task]
        os.kill(process, signal.SIGKILL)
        return time.time()

    def end(self) -> None:
        """Ends the job."""
        self.process.send_signal(signal.SIGINT)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


def seconds_to_next_step(folder: Path, number: int, victim: int, *, elastic: bool) -> float:
    """Returns the seconds from a kill until all that are left, or all anew, have made a step."""
    job = Job(folder, number, elastic=elastic)
    try:
        job.wait_for_steps(25, number)
        killed = job.kill(victim)
        # A step that was complete at the time may still be noted.
        return job.wait_for_steps(1, number - elastic, since=killed + 0.1) - killed
    finally:
        job.end()


def report_kills(folder: Path, workers: list[int], rounds: int) -> None:
    """Prints how long it takes from a kill to the next step."""
    print(f"{'workers':>7}  {'killed':<7}  {'resumes':>8}  {'restart':>8}  ratio")
    for number in workers:
        for name, victim in (("worker", number - 1), ("leader", 0)):
            goes_on, restart = (
                statistics.median(
                    seconds_to_next_step(folder, number, victim, elastic=elastic)
                    for _ in range(rounds)
                )
                for elastic in (True, False)
            )
            ratio = goes_on / restart
            print(
                f"{number:>7}  {name:<7}  {goes_on:>6.2f} s  {restart:>6.2f} s  {ratio:.2f}",
                flush=True,
            )


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[3, 5])
    options = parser.parse_args()
    # A job in the background begins with interrupts ignored, and so would the jobs that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        report_kills(Path(folder), options.workers, options.rounds)


if __name__ == "__main__":
    main()
