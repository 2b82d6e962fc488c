"""The checkpoints that ``write_checkpoints.py`` has written, and what TensorFlow reads from them."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class WrittenFiles:
    root: Path
    size: int

    @functools.cached_property
    def _expected(self):
        return json.loads((self.root / "expected.json").read_text())

    def prefixes(self):
        return list(self._expected["tensors"])

    def tensors(self, prefix):
        """Returns what TensorFlow reads from a checkpoint, its object graph apart."""
        return {k: as_array(v) for k, v in self._expected["tensors"][prefix].items()}

    def predicted(self, name):
        return as_array(self._expected["results"][name]["predicted"])

    def after(self, name):
        """Returns the weights after one more step in TensorFlow."""
        return [as_array(one) for one in self._expected["results"][name]["after"]]


def as_array(described):
    shape, values = described["shape"], described["values"]
    if described["dtype"] == "string":
        array = np.empty(len(values), object)
        array[:] = [text.encode("latin-1") for text in values]
        return array.reshape(shape)
    dtype = np.dtype(getattr(ml_dtypes, described["dtype"], described["dtype"]))
    if dtype.kind == "c":
        return np.array([complex(*pair) for pair in values], dtype).reshape(shape)
    return np.array(values).astype(dtype).reshape(shape)


def numbers(*shape, start=0.0):
    """Returns the numbers that ``write_checkpoints.py`` saves."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32) / 8 + start).reshape(shape)
