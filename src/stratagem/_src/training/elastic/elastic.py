"""``elastic``: training that survives the loss of workers."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from stratagem._src.training.elastic.elastic_loop import ElasticLoop, first_place
from stratagem._src.training.elastic.elastic_run import ElasticRun

__all__ = ["elastic"]


def elastic(strategy: Strategy) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function that trains go on when workers are lost, and when others take their places.

    The function gets an ``ElasticLoop`` before its other arguments, and writes its loops with it. When a
    worker is killed, the others form anew without it within seconds, divide the batch that was at work
    between them, and go on; a worker that takes its place comes in at the next boundary. All variables
    that were created in the strategy's scope have then, in all workers, the values from the last
    boundary. See docs/fault_tolerance.md.

    A job that is started again goes on where it was if the loop is in its checkpoint, before which it is
    restored: ``Checkpoint(model=model, loop=loop)``.

    It takes a job that was started as elastic, by ``stratagem run --workers MIN:MAX``, and CPU devices.
    In any other the function is called as it is, and a lost worker ends the job.

    Args:
        strategy: The strategy that trains.

    Returns:
        What makes of ``train(loop, ...)`` a function ``train(...)``.

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
        def run(*args: Any, **kwargs: Any) -> Any:
            if (
                isinstance(strategy, MultiWorkerMirroredStrategy)
                and strategy.elastic_job is not None
            ):
                return ElasticRun(strategy).run(train, args, kwargs)
            # Of the leader: workers that divide a dataset must have it in one order.
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
