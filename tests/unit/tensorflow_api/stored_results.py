"""The cases of all files, and what TensorFlow gave for them."""

from __future__ import annotations

import base64
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from compared_cases import Case, fingerprint

__all__ = ["FILE", "StoredResults", "groups", "written"]

FILE = Path(__file__).with_name("results.json")


def groups() -> dict[str, list[Case]]:
    """Returns the cases by the name of their file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_of_*.py"))
    return {name: importlib.import_module(name).CASES for name in names}


def written(array: np.ndarray) -> list[Any]:
    """Returns an array as JSON takes it."""
    if array.dtype == np.object_:
        return [
            "strings",
            list(array.shape),
            [str(item, "latin-1") for item in array.ravel().tolist()],
        ]
    return [array.dtype.name, list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _read(dtype: str, shape: list[int], content: Any) -> np.ndarray:
    if dtype == "strings":
        array = np.empty(len(content), np.object_)
        array[:] = [item.encode("latin-1") for item in content]
        return array.reshape(shape)
    return np.frombuffer(base64.b64decode(content), dtype).reshape(shape)


class StoredResults:
    """What ``write_results.py`` wrote."""

    def __init__(self) -> None:
        self._stored = json.loads(FILE.read_text())

    def of(
        self, name: str, number: int, made: Case
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | str:
        """Returns what ``compared_cases.call`` returned."""
        key = f"{name}/{number}/{fingerprint(made)}"
        if key not in self._stored:
            raise KeyError(f"{made.name} is not stored as it is now: run write_results.py")
        found = self._stored[key]
        if isinstance(found, str):
            return found
        result, gradients = ([_read(*array) for array in arrays] for arrays in found)
        return result, gradients
