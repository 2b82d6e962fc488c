"""``elastic``: elastic training, which survives the loss of workers."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from stratagem._src.training.elastic.elastic_loop import ElasticLoop, first_place
from stratagem._src.training.elastic.elastic_run import ElasticRun

__all__ = ["elastic"]


def elastic(strategy: Strategy) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a training function continue when workers are lost and when others join.

    The function gets an ``ElasticLoop`` before its other arguments, and writes its loops with it. When a
    worker is killed, the others re-form without it within seconds, redistribute the batch that was being
    processed, and continue. A replacement joins at the next boundary. All variables that were created in
    the strategy's scope then have, in all workers, the values from the last boundary. See
    docs/fault_tolerance.md.

    A restarted job resumes where it was if the loop is part of its checkpoint and is restored before the
    first loop: ``Checkpoint(model=model, loop=loop)``.

    It needs a job that was started as elastic, with ``stratagem run --workers MIN:MAX``, and CPU devices.
    In any other job the function is called once, and a lost worker ends the job.

    Args:
        strategy: The strategy that trains.

    Returns:
        A decorator that turns ``train(loop, ...)`` into ``train(...)``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MultiWorkerMirroredStrategy()  # no cluster: one worker
    >>> with strategy.scope():
    ...     total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
    >>> dataset = sg.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0]).batch(2)
    >>> @sg.train.elastic(strategy)
    ... def train(loop):
    ...     for epoch in loop.range(2):
    ...         for batch in loop.batches(dataset):
    ...             strategy.run(lambda x: total.assign_add(x.sum()), args=(batch,))
    ...         print(epoch, loop.step, float(total))
    >>> train()
    0 2 10.0
    1 4 20.0
    """
    if not isinstance(strategy, Strategy):
        raise InvalidArgumentError(
            f"elastic() needs the strategy that trains, got {strategy!r}. Write "
            "@stratagem.train.elastic(strategy) above the function."
        )

    def decorate(train: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(train)
        def run(*args: PyTree, **kwargs: PyTree) -> Any:
            if (
                isinstance(strategy, MultiWorkerMirroredStrategy)
                and strategy.elastic_job is not None
            ):
                return ElasticRun(strategy).run(train, args, kwargs)
            # The leader's seed: workers that shard a dataset must shuffle it in the same order.
            seed = strategy.extended.leader_value(
                np.uint32(secrets.randbits(32)), "seed of the elastic run"
            )
            loop = ElasticLoop(strategy, first_place(int(seed)), lambda _: None, lambda: None)
            try:
                return train(loop, *args, **kwargs)
            finally:
                loop.close()

        return run

    return decorate
