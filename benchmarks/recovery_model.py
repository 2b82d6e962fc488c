"""What an elastic job of a small GPT takes to go on, with and without its compilation cache.

Three workers train the transformer of ``examples/language_model.py``. One is killed, the other two go on,
the launcher starts it again and it joins; then it is killed once more. Printed are the seconds from each
kill to the first step of the two that are left, and from the start of the new worker's training to the
first step of all three.

    python benchmarks/recovery_model.py [--layers N] [--dims N]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = """
import json, os, sys, time
import jax
import numpy as np
import optax
import stratagem as sg

folder, layers, dims = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, sys.argv[4])
import language_model as lm

lm.LAYERS, lm.DIMS = layers, dims
strategy = sg.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
file = open(f"{folder}/{task}-{os.getpid()}", "w", buffering=1)
rng = np.random.default_rng(0)
words = rng.integers(0, 500, (960, lm.CONTEXT + 1)).astype(np.int32)
dataset = sg.data.Dataset.from_tensor_slices(words).batch(12).repeat()
with strategy.scope():
    parameters = lm.create_parameters(500)
    optimizer = sg.train.Optimizer(optax.adamw(1e-3))
leaves = jax.tree.leaves(parameters, is_leaf=lambda x: isinstance(x, sg.Variable))

@sg.function
def step(batch):
    def replica_step(words):
        def loss():
            scores = lm.scores_of(parameters, words[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, words[:, 1:]).mean(-1)
            return sg.nn.compute_average_loss(losses, global_batch_size=12)
        value, gradients = sg.value_and_grad(loss, leaves)()
        optimizer.apply_gradients(zip(gradients, leaves))
        return value
    return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

def note(what):
    record = {"time": time.time(), "what": what, "workers": strategy.num_replicas_in_sync}
    file.write(json.dumps(record) + "\\n")

@sg.train.elastic(strategy)
def train(loop):
    for batch in loop.batches(dataset):
        float(step(batch))
        note("step")

note("ready")
train()
"""


class Job:
    """The job, until the block ends."""

    def __init__(self, folder: Path, layers: int, dims: int, *, cached: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        program = self.folder / "program.py"
        program.write_text(PROGRAM)
        arguments = [self.folder, str(layers), str(dims), EXAMPLES]
        command = [
            sys.executable,
            "-m",
            "stratagem",
            "run",
            "--workers",
            "2:3",
            program,
            *arguments,
        ]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "JAX_ENABLE_COMPILATION_CACHE": str(cached),
        }
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def first(self, what: str, workers: int, since: float, task: int | None = None) -> float:
        """Returns when a worker first noted something after a moment."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            times = [
                record["time"]
                for file in self.folder.glob(f"{'*' if task is None else task}-*")
                for line in file.read_text().split("\n")[:-1]
                if (record := json.loads(line))["what"] == what
                and record["workers"] == workers
                and record["time"] > since
            ]
            if times:
                return min(times)
            time.sleep(0.02)
        raise TimeoutError(f"no {what} of {workers} workers:\n{self.log.read_text()[-4000:]}")

    def kill(self, task: int) -> float:
        """Kills the newest process of a task; returns when."""
        files = sorted(self.folder.glob(f"{task}-*"), key=lambda file: file.stat().st_ctime)
        os.kill(int(files[-1].name.split("-")[1]), signal.SIGKILL)
        return time.time()


def measure(folder: Path, layers: int, dims: int, *, cached: bool) -> list[float]:
    """Returns the seconds of the first loss, of joining, and of the second loss."""
    with Job(folder, layers, dims, cached=cached) as job:
        begun = job.first("step", 3, 0.0)
        killed = job.kill(2)
        went_on = job.first("step", 2, max(begun, killed))
        ready = job.first("ready", 3, killed, task=2)
        joined = job.first("step", 3, max(ready, went_on))
        again = job.kill(2)
        return [went_on - killed, joined - ready, job.first("step", 2, again) - again]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dims", type=int, default=128)
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"{'compilation cache':20}{'first loss':>12}{'joining':>12}{'next loss':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for cached in (True, False):
            seconds = measure(Path(folder), args.layers, args.dims, cached=cached)
            name = "with" if cached else "without"
            print(f"{name:20}" + "".join(f"{each:>10.1f} s" for each in seconds), flush=True)


if __name__ == "__main__":
    main()
