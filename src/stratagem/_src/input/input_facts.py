"""``input_facts``: a plain-data summary of a dataset, which workers compare before they shard it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.types import Dataset as DatasetLike
from stratagem._src.core.types import ElementSpec
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.options import AutoShardPolicy
from stratagem._src.data.plan.node import Node, known, walk
from stratagem._src.data.plan.run import Seed
from stratagem._src.data.sources.tensors import InMemory
from stratagem._src.data.structure import flatten
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.data.transforms.batch import Batch
from stratagem._src.data.transforms.prefetch import Prefetch
from stratagem._src.input.sources import as_source

__all__ = ["Facts", "element_types", "input_facts"]

Facts = Mapping[str, Any]
"""Facts by name. ``None`` means unknown, and is equal to any value."""

_MAX_SAMPLED_ROWS = 16
# Parts of the names of attributes that change the speed, not the elements. Their values may depend on the
# number of CPUs, which may differ between workers.
_SPEED = ("parallel", "thread", "row_numbers")


def input_facts(dataset: DatasetLike) -> Facts:
    """Returns what must be equal on all workers that shard a dataset of global batches.

    With ``AutoShardPolicy.OFF`` workers read different data, and only the element types must be equal.
    User functions and generators are not inspected: their batches are compared step by step.

    >>> facts = input_facts(Dataset.range(8).batch(4))
    >>> facts["batch size"], facts["number of batches"], facts["plan"]
    ('4', 2, 'Range[8].Batch(sizes=(4,), drop_remainder=False)')
    """
    if not isinstance(dataset, Dataset):
        return {"number of batches": as_source(dataset).num_elements()}
    policy = dataset.options().experimental_distribute.auto_shard_policy
    facts: dict[str, Any] = {
        "element types": element_types(dataset.element_spec),
        "sharding policy": f"AutoShardPolicy.{policy.name}",
    }
    if policy is AutoShardPolicy.OFF:
        return facts
    count = dataset.cardinality()
    return facts | {
        "batch size": _batch_size(dataset.plan),
        "number of batches": count if known(count) else None,
        "element shapes": str([str(spec.shape) for spec in _specs(dataset.element_spec)]),
        "plan": _steps(dataset.plan),
        "content of arrays or names of files": _content(dataset.plan),
    }


def element_types(element_spec: ElementSpec) -> str:
    """Returns the structure and the dtypes of an element, without sizes."""
    leaves, structure = structures.flatten(element_spec, lambda x: isinstance(x, TensorSpec))
    return f"{[spec.dtype.name for spec in leaves]} in {structure}"


def _specs(element_spec: ElementSpec) -> list[Any]:
    leaves, _ = structures.flatten(element_spec, lambda x: isinstance(x, TensorSpec))
    return list(leaves)


def _batch_size(plan: Node) -> str | None:
    """Returns the batch sizes of the last batching transformation."""
    batching = [node for node in walk(plan) if isinstance(node, Batch)]
    return ", ".join(map(str, batching[-1].sizes)) if batching else None


def _steps(plan: Node) -> str:
    """Returns the transformations with their numeric arguments, in the order of the user's code."""
    parts = [_steps(node) for node in plan.inputs]
    before = parts[0] if len(parts) == 1 else f"({', '.join(parts)})" if parts else ""
    if isinstance(plan, Prefetch):
        return before
    name = plan.describe() if isinstance(plan, InMemory) else type(plan).__name__
    ignored = ("inputs", "_spec", "batch_levels", *plan.derived_attributes)
    arguments = ", ".join(
        f"{key.lstrip('_')}={_shown(value)}"
        for key, value in vars(plan).items()
        if key not in ignored and not any(word in key for word in _SPEED) and _is_plain(value)
    )
    step = f"{name}({arguments})" if arguments else name
    return f"{before}.{step}" if before else step


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | Seed | np.integer)


def _shown(value: Any) -> str:
    # A random seed is left out: the workers agree on a common one.
    return str(value.identity[0]) if isinstance(value, Seed) else str(value)


def _content(plan: Node) -> str | None:
    """Returns a checksum over a sample of rows of all in-memory arrays.

    Strings may be paths, which differ between machines, so only their last component counts.
    """
    checksum, found = 0, False
    for node in walk(plan):
        if not isinstance(node, InMemory) or not len(node.random_access()):
            continue
        found = True
        table = node.random_access()
        count = min(len(table), _MAX_SAMPLED_ROWS)
        rows = np.unique(np.linspace(0, len(table) - 1, count).astype(np.int64))
        for array in flatten(table.gather(rows)):
            checksum = zlib.crc32(_bytes_of(np.asarray(array)), checksum)
    return f"checksum {checksum:08x}" if found else None


def _bytes_of(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.kind not in "OSU":
        return np.ascontiguousarray(array).tobytes()
    texts = (os.fsdecode(item) if isinstance(item, bytes) else str(item) for item in array.flat)
    return "\n".join(map(os.path.basename, texts)).encode(errors="surrogateescape")
