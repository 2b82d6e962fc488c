"""Saving a checkpoint, alone or with the other workers."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.training.checkpoint_directory import NewDirectory, new_directory
from stratagem._src.training.checkpoint_format import CheckpointWriter
from stratagem._src.training.checkpoint_index import SavedArray, SavedOptimizer
from stratagem._src.training.saved_values import SavedValue
from stratagem._src.training.worker_agreement import WorkerAgreement

__all__ = ["Contents", "save_together"]

_MOST_SHOWN = 100


class Contents(NamedTuple):
    """What there is to save.

    Attributes:
        values: Everything that becomes an array, by name.
        optimizers: What the arrays of optimizers are.
    """

    values: dict[str, SavedValue]
    optimizers: dict[str, SavedOptimizer]


def save_together(
    prefix: Path, contents: Callable[[], Contents], agreement: WorkerAgreement
) -> str:
    """Saves a checkpoint and returns the name of its directory.

    Of the workers that give the same prefix the first writes what all have in common, and each what it
    has of its own. The directory appears when all have; if one fails, all raise and nothing is left.

    Args:
        prefix: Path of the directory without the number.
        contents: Returns what this worker has to save.
        agreement: What ties the workers together.
    """
    values: dict[str, SavedValue] = {}
    optimizers: dict[str, SavedOptimizer] = {}

    def plan() -> Any:
        found = contents()
        values.update(found.values)
        optimizers.update(found.optimizers)
        return [os.path.abspath(prefix), _digest(values)]

    plans = agreement.settle(plan)
    if len({digest for _, digest in plans}) > 1:
        _refuse_different(agreement, values)
    prefixes = [path for path, _ in plans]
    writer = prefixes.index(prefixes[agreement.worker])
    writes = writer == agreement.worker
    own = {name for name, value in values.items() if value.is_of_this_worker}
    # Before anything is written, which may fail on one worker alone.
    for name, value in values.items():
        if value.is_read_together:
            values[name] = value.read()

    with contextlib.ExitStack() as stack:
        directories: list[NewDirectory] = []

        def begin() -> str | None:
            if not writes:
                return None
            directories.append(stack.enter_context(new_directory(prefix)))
            return os.path.abspath(directories[0].hidden)

        hidden = Path(agreement.settle(begin)[writer])
        to_write = CheckpointWriter(hidden, None if writes else agreement.worker)

        def write() -> Any:
            for name, value in values.items():
                if writes or name in own:
                    blocks = _with_signs(value.blocks(), agreement.show_sign)
                    to_write.add(name, value.shape, value.dtype, blocks)
            return None if writes else [[name, *array] for name, array in _plain(to_write.arrays)]

        parts = agreement.settle(write)

        def finish() -> str | None:
            if not writes:
                return None
            of_workers = {
                worker: {name: SavedArray(tuple(shape), *rest) for name, shape, *rest in part}
                for worker, part in enumerate(parts)
                if part and prefixes[worker] == prefixes[writer]
            }
            to_write.finish(optimizers, of_workers)
            return directories[0].appear().name

        return str(agreement.settle(finish)[writer])


def _plain(arrays: dict[str, SavedArray]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, array in arrays.items():
        yield name, (list(array.shape), array.dtype, array.checksum)


def _with_signs(blocks: Iterable[Any], show_sign: Callable[[], None]) -> Iterator[Any]:
    for block in blocks:
        yield block
        show_sign()


def _digest(values: Mapping[str, SavedValue]) -> str:
    """Returns something short that differs for other contents."""
    return hashlib.blake2b("\n".join(_described(values)).encode(), digest_size=16).hexdigest()


def _described(values: Mapping[str, SavedValue]) -> list[str]:
    return [f"{name!a}: {v.dtype.name}{list(v.shape)}" for name, v in values.items()]


def _refuse_different(agreement: WorkerAgreement, values: Mapping[str, SavedValue]) -> NoReturn:
    every = agreement.settle(lambda: _described(values)[:_MOST_SHOWN])
    raise InvalidArgumentError(
        "All workers must save the same things in a Checkpoint, got "
        + " and ".join(dict.fromkeys(map(str, every)))
        + "."
    )
