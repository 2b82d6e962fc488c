"""The sizes and batches of ``keras_fit_servers.py``, for TensorFlow too."""

from __future__ import annotations

import numpy as np

__all__ = ["BATCH_SIZE", "NUM_IDS", "NUM_ROWS", "RATE", "WIDTH", "make_batches"]

NUM_ROWS, WIDTH = 100_000, 32
NUM_IDS, BATCH_SIZE, NUM_BATCHES = 8, 128, 50
RATE = 0.01


def make_batches() -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and targets, with batches along the first axis."""
    random = np.random.default_rng()
    ids = random.integers(0, NUM_ROWS, (NUM_BATCHES, BATCH_SIZE, NUM_IDS)).astype(np.int32)
    return ids, random.random((NUM_BATCHES, BATCH_SIZE, 1), np.float32)
