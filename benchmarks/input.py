"""Throughput of reading and distributing datasets, against plain NumPy, tf.data and ``jax.device_put``.

tf.data is measured in the same run where ``--tensorflow-python`` names an interpreter that has it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import stratagem as sg
from stratagem.data import Dataset, TFRecordDataset
from stratagem.io import TFRecordWriter

NUM_EXAMPLES = 60_000
NUM_FEATURES = 784
BATCH_SIZE = 128
NUM_RECORDS = 200_000
RECORD_BYTES = 100


def best_rate(count: int, run: Callable[[], int], repeats: int) -> float:
    """Returns millions of items per second in the fastest of several runs."""
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        assert run() == count
        rates.append(count / (time.perf_counter() - start) / 1e6)
    return max(rates)


def numpy_gather(images: np.ndarray) -> int:
    order = np.random.default_rng().permutation(len(images))
    seen = 0
    for start in range(0, len(images), BATCH_SIZE):
        seen += len(images[order[start : start + BATCH_SIZE]])
    return seen


def count_rows(dataset: Dataset) -> int:
    return sum(len(batch) for batch in dataset)


def scale(image: np.ndarray) -> np.ndarray:
    return image.astype(np.float32) / 255


def write_records(path: Path) -> None:
    record = bytes(RECORD_BYTES)
    with TFRecordWriter(path) as writer:
        for _ in range(NUM_RECORDS):
            writer.write(record)


def overlap_ratio(milliseconds: float, steps: int) -> float:
    """Returns how long a step takes that is fed by a pipeline as slow as itself, in steps."""
    seconds = milliseconds / 1e3

    def slow_batches():
        for _ in range(steps + 1):
            time.sleep(seconds)
            yield np.zeros((8, 4), np.float32)

    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = iter(strategy.experimental_distribute_dataset(slow_batches()))
    next(iterator)
    fed = alone = 0.0
    for _ in range(steps):
        start = time.perf_counter()
        next(iterator)
        between = time.perf_counter()
        time.sleep(seconds)
        end = time.perf_counter()
        fed += end - start
        alone += end - between
    return fed / alone


def distribution_ratio(repeats: int) -> tuple[float, float]:
    """Returns microseconds of ``next()`` on two replicas, and of ``jax.device_put`` of its batch."""
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    sharding = strategy.replica_group.sharded
    batch = np.random.default_rng(0).random((1024, NUM_FEATURES), np.float32)
    dataset = Dataset.from_tensors(batch).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    count = 20
    ours, theirs = [], []
    for _ in range(10 * repeats):
        start = time.perf_counter()
        for _ in range(count):
            element = next(iterator)
        element.global_array(strategy.replica_group).block_until_ready()
        ours.append((time.perf_counter() - start) / count * 1e6)
        start = time.perf_counter()
        for _ in range(count):
            array = jax.device_put(batch, sharding)
        array.block_until_ready()
        theirs.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(ours), statistics.median(theirs)


def tensorflow_rates(python: str, records: Path, repeats: int) -> dict[str, float]:
    request = {
        "num_examples": NUM_EXAMPLES,
        "num_features": NUM_FEATURES,
        "batch_size": BATCH_SIZE,
        "records": str(records),
        "repeats": repeats,
    }
    script = Path(__file__).with_name("input_tensorflow.py")
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"TensorFlow side failed:\n{done.stderr}")
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    flags = parser.parse_args()
    repeats = flags.repeats
    sg.config.set_num_cpu_devices(2)

    images = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, NUM_FEATURES), dtype=np.uint8)
    shuffled = Dataset.from_tensor_slices(images).shuffle(NUM_EXAMPLES)
    mapped = shuffled.map(scale).batch(BATCH_SIZE)
    batched = shuffled.batch(BATCH_SIZE)

    gather = best_rate(NUM_EXAMPLES, lambda: numpy_gather(images), repeats)
    batches = best_rate(NUM_EXAMPLES, lambda: count_rows(batched), repeats)
    scaled = best_rate(NUM_EXAMPLES, lambda: count_rows(mapped), repeats)
    peer: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        write_records(path)
        records = best_rate(NUM_RECORDS, lambda: sum(1 for _ in TFRecordDataset(path)), repeats)
        in_batches = TFRecordDataset(path).batch(1024)
        record_batches = best_rate(NUM_RECORDS, lambda: count_rows(in_batches), repeats)
        if flags.tensorflow_python:
            peer = tensorflow_rates(flags.tensorflow_python, path, repeats)

    rows = [
        ("shuffle + batch", batches, "NumPy", gather, 0.5),
        ("shuffle + batch", batches, "tf.data", peer.get("batch"), None),
        ("shuffle + map + batch", scaled, "tf.data", peer.get("map"), 10.0),
        ("TFRecords, one by one", records, "tf.data", peer.get("records"), 1.0),
        (
            "TFRecords in batches of 1024",
            record_batches,
            "tf.data",
            peer.get("record batches"),
            1.0,
        ),
    ]
    print(f"{'pipeline':<32}{'M/s':>8}{'against':>10}{'M/s':>8}{'ratio':>8}{'at least':>10}")
    for name, rate, other, other_rate, wanted in rows:
        against = (
            "   --      --"
            if other_rate is None
            else f"{other_rate:>8.3f}{rate / other_rate:>8.1f}"
        )
        print(f"{name:<32}{rate:>8.2f}{other:>10}{against}{wanted or '':>10}")

    ratio = overlap_ratio(milliseconds=5, steps=60)
    print(f"\na step of 5 ms fed by a pipeline of 5 ms: {ratio:.2f} steps (at most 1.2)")
    ours, theirs = distribution_ratio(repeats)
    print(
        f"next() on 2 replicas {ours:.0f} us, jax.device_put {theirs:.0f} us: "
        f"{ours / theirs:.2f} (at most 1.3)"
    )


if __name__ == "__main__":
    main()
