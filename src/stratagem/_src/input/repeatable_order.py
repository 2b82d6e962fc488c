"""Whether an iterable of another library yields its elements in the same order each time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.types import Dataset

__all__ = ["check_repeatable"]

_logger = logging.getLogger("stratagem")
_warned: list[str] = []


def check_repeatable(dataset: Dataset) -> None:
    """Checks that the number of elements read says where an iteration over ``dataset`` was.

    Restoring such a state reads that number of elements and drops them. In another order these are other
    elements: some would be repeated and some skipped. An order that nothing is known of only warns, once.

    Raises:
        UnsupportedError: If the order is known to be random.
    """
    what = f"a {type(dataset).__module__}.{type(dataset).__qualname__}"
    sampler = _random_sampler(dataset)
    if sampler is not None:
        raise UnsupportedError(
            "The position in a dataset can be saved only if its order can be repeated, got "
            f"{what} with a {type(sampler).__name__} without a generator: a restored iterator would repeat "
            "and skip examples. Give the loader of each epoch a seeded generator, DataLoader(..., "
            "shuffle=True, generator=torch.Generator().manual_seed(epoch)); or use a sg.data.Dataset, "
            "whose shuffle saves its order; or save between epochs, without the iterator."
        )
    is_ordered = isinstance(dataset, (Sequence, np.ndarray)) or hasattr(dataset, "__getitem__")
    if is_ordered or _is_loader(dataset) or what.startswith("a grain.") or _warned:
        return
    _warned.append(what)
    _logger.warning(
        "The saved position in %s is the number of elements read, because it has no state of its own; "
        "restoring it reads and drops these. That is right only if it yields the same elements in the same "
        "order each time. If it shuffles, seed it, or use a sg.data.Dataset.",
        what,
    )


def _is_loader(dataset: Dataset) -> bool:
    """Returns whether a dataset looks like a ``DataLoader`` of PyTorch that draws from a sampler."""
    return hasattr(dataset, "batch_sampler") and hasattr(dataset, "sampler")


def _random_sampler(dataset: Dataset) -> Any | None:
    """Returns the sampler of a PyTorch loader that draws from the global random state, if it has one."""
    if not _is_loader(dataset):
        return None
    within = (dataset.sampler, getattr(dataset.batch_sampler, "sampler", None))
    # Samplers that shuffle have a generator, or None for the global one; others have no such attribute.
    return next((s for s in within if getattr(s, "generator", s) is None), None)
