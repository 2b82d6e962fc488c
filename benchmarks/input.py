"""How fast `stratagem.data` reads, against plain NumPy and a given figure for tf.data.

Run: python benchmarks/input.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stratagem.data import Dataset, TFRecordDataset
from stratagem.io import TFRecordWriter

NUM_EXAMPLES = 60_000
NUM_FEATURES = 784
BATCH_SIZE = 128
NUM_RECORDS = 200_000
RECORD_BYTES = 100

# Measured with tf.data of TensorFlow 2.21 on two cores, in millions per second.
TF_MAP = 0.035
TF_RECORDS = 0.39


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats

    images = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, NUM_FEATURES), dtype=np.uint8)
    shuffled = Dataset.from_tensor_slices(images).shuffle(NUM_EXAMPLES)
    mapped = shuffled.map(scale).batch(BATCH_SIZE)

    gather = best_rate(NUM_EXAMPLES, lambda: numpy_gather(images), repeats)
    batches = best_rate(NUM_EXAMPLES, lambda: count_rows(shuffled.batch(BATCH_SIZE)), repeats)
    scaled = best_rate(NUM_EXAMPLES, lambda: count_rows(mapped), repeats)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        write_records(path)
        records = best_rate(NUM_RECORDS, lambda: sum(1 for _ in TFRecordDataset(path)), repeats)

    rows = [
        ("shuffle + batch, NumPy gather", batches, "NumPy", gather, 0.5),
        ("shuffle + map + batch", scaled, "tf.data", TF_MAP, 10.0),
        (f"TFRecords of {RECORD_BYTES} bytes", records, "tf.data", TF_RECORDS, 1.0),
    ]
    print(f"{'pipeline':<32}{'M/s':>8}{'against':>10}{'M/s':>8}{'ratio':>8}{'wanted':>8}")
    for name, rate, other, other_rate, wanted in rows:
        ratio = rate / other_rate
        print(f"{name:<32}{rate:>8.2f}{other:>10}{other_rate:>8.3f}{ratio:>8.1f}{wanted:>8.1f}")


if __name__ == "__main__":
    main()
