"""Auto-sharding: chooses the policy by which workers shard a dataset, and applies it."""

from __future__ import annotations

import functools
import logging

from stratagem._src.core.errors import InvalidArgumentError, NotFoundError
from stratagem._src.data.auto_shard import num_files, seed_shuffles, shard_at_hints, shard_by_file
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.options import AutoShardPolicy
from stratagem._src.input.sources import Source, as_source
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.input.worker_input import SplitSteps, WorkerInput

__all__ = ["choose_policy", "shard_for_worker", "with_common_order"]

_logger = logging.getLogger("stratagem")
_warned: list[AutoShardPolicy] = []


def choose_policy(policy: AutoShardPolicy, files: int | None, num_workers: int) -> AutoShardPolicy:
    """Returns the policy that ``AUTO`` resolves to; checks and returns the others.

    Args:
        policy: The policy in the dataset's options.
        files: The number of files it reads, or ``None``.
        num_workers: The number of workers.

    Raises:
        InvalidArgumentError: If there are fewer files than workers.
        NotFoundError: If the policy is ``FILE`` and the dataset reads no files.

    >>> choose_policy(AutoShardPolicy.AUTO, files=4, num_workers=2).name
    'FILE'
    >>> choose_policy(AutoShardPolicy.AUTO, files=None, num_workers=2).name
    'DATA'
    """
    if policy is AutoShardPolicy.AUTO:
        policy = AutoShardPolicy.DATA if files is None else AutoShardPolicy.FILE
    if policy is AutoShardPolicy.FILE:
        if files is None:
            raise NotFoundError(
                "AutoShardPolicy.FILE needs a dataset that reads files. Use DATA or AUTO."
            )
        if files < num_workers:
            raise InvalidArgumentError(
                f"Sharding by file needs at least one file for each worker, got {files} files and "
                f"{num_workers} workers. Use AutoShardPolicy.DATA, or OFF."
            )
    return policy


def with_common_order(dataset: object, seed: int) -> object:
    """Returns the dataset with the same shuffle order on all workers, which then shard it.

    With ``AutoShardPolicy.OFF`` every worker keeps its own order.

    Args:
        dataset: The dataset.
        seed: A seed that is the same on all workers.
    """
    if not isinstance(dataset, Dataset):
        return dataset
    if dataset.options().experimental_distribute.auto_shard_policy is AutoShardPolicy.OFF:
        return dataset
    return seed_shuffles(dataset, seed)


def shard_for_worker(dataset: object, position: WorkerPosition) -> tuple[WorkerInput, Source]:
    """Returns a worker's steps from a dataset of global batches, and the source of these steps."""
    if not isinstance(dataset, Dataset):
        source = as_source(dataset)
        return functools.partial(SplitSteps, source, position, True), source
    wanted = dataset.options().experimental_distribute.auto_shard_policy
    if position.num_workers == 1:
        if wanted is AutoShardPolicy.HINT:
            dataset = shard_at_hints(dataset, 1, 0)
        source = as_source(dataset)
        return functools.partial(SplitSteps, source, position, True), source
    policy = choose_policy(wanted, num_files(dataset), position.num_workers)
    is_news = position.index == 0 and not _warned  # once per program, from the leader
    if wanted is AutoShardPolicy.AUTO and policy is AutoShardPolicy.DATA and is_news:
        _warned.append(policy)
        _logger.warning(
            "The dataset reads no files, so every worker reads all of it and keeps its share. To read "
            "less, use distribute_datasets_from_function; to suppress this message, choose "
            "AutoShardPolicy.DATA."
        )
    if policy is AutoShardPolicy.FILE:
        dataset = shard_by_file(dataset, position.num_workers, position.index)
    elif policy is AutoShardPolicy.HINT:
        dataset = shard_at_hints(dataset, position.num_workers, position.index)
    source = as_source(dataset)
    replicated = policy is AutoShardPolicy.DATA
    return functools.partial(SplitSteps, source, position, replicated), source
