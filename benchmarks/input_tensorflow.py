"""The pipelines of ``input.py`` with tf.data; started by it, in its own interpreter."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import tensorflow as tf


def best_rate(count, run, repeats) -> float:
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        assert run() == count
        rates.append(count / (time.perf_counter() - start) / 1e6)
    return max(rates)


def main() -> None:
    request = json.load(sys.stdin)
    count, repeats = request["num_examples"], request["repeats"]
    images = np.zeros((count, request["num_features"]), np.uint8)
    shuffled = tf.data.Dataset.from_tensor_slices(images).shuffle(count)
    batched = shuffled.batch(request["batch_size"])
    mapped = shuffled.map(lambda x: tf.cast(x, tf.float32) / 255).batch(request["batch_size"])

    def rows(dataset):
        return sum(len(batch) for batch in dataset)

    records = tf.data.TFRecordDataset(request["records"])
    in_batches = records.batch(1024)
    num_records = rows(in_batches)
    rates = {
        "batch": best_rate(count, lambda: rows(batched), repeats),
        "map": best_rate(count, lambda: rows(mapped), repeats),
        "records": best_rate(
            num_records, lambda: sum(1 for _ in records.as_numpy_iterator()), min(repeats, 1)
        ),
        "record batches": best_rate(num_records, lambda: rows(in_batches), repeats),
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
