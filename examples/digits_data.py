"""The handwritten digits that the digits examples train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NUM_TEST = 360


def load_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns images and labels of 1,437 digits to train with, then of 360 to test with."""
    with np.load(Path(__file__).parent / "data" / "digits.npz") as data:
        images = data["images"].reshape(-1, 64).astype(np.float32) / 16
        labels = data["labels"].astype(np.int32)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    return (images[NUM_TEST:], labels[NUM_TEST:]), (images[:NUM_TEST], labels[:NUM_TEST])
