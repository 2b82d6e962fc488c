"""Copied and pickled iterators go on where the original stood."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import numpy as np
import pytest

from stratagem.data import Dataset

from .pipelines import contents, streamed


def shipped(iterator):
    return pickle.loads(cloudpickle.dumps(iterator))


WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": shipped}

DATASETS = {
    "slices": lambda: Dataset.range(20),
    "shuffled and repeated": lambda: Dataset.range(20).shuffle(7).repeat(2).batch(3),
    "generator": lambda: streamed(range(20)).batch(2),
    "map": lambda: Dataset.range(20).map(lambda x: x * 2).batch(2),
    "opaque map": lambda: Dataset.range(20).map(lambda x: int(x) + 1),
    "parallel map": lambda: streamed(range(20)).map(lambda x: int(x), num_parallel_calls=3),
    "prefetch": lambda: streamed(range(20)).prefetch(4),
    "cache": lambda: streamed(range(20)).cache(),
    "cached table": lambda: Dataset.range(20).map(lambda x: x + 1).cache().batch(3),
    "interleave": lambda: Dataset.range(4).interleave(lambda n: Dataset.range(n + 1), 2),
    "zip": lambda: Dataset.zip((Dataset.range(9), streamed(range(9)))),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("build", DATASETS.values(), ids=DATASETS)
def test_a_copy_goes_on_independently(build, way):
    iterator = iter(build())
    for _ in range(3):
        next(iterator)
    other = way(iterator)
    expected = contents(iterator)
    assert expected
    assert contents(other) == expected


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_copy_of_an_ended_or_closed_iterator_has_ended(way):
    iterator = iter(Dataset.range(2))
    list(iterator)
    assert next(way(iterator), "end") == "end"
    iterator = iter(Dataset.range(2))
    iterator.close()
    assert next(way(iterator), "end") == "end"


def test_a_copy_does_not_change_the_order_of_later_iterations():
    orders = []
    for copies in (False, True):
        dataset = Dataset.range(30).shuffle(30, seed=5)
        iterator = iter(dataset)
        if copies:
            copy.copy(iterator)
        orders.append([contents(iterator), contents(dataset)])
    assert orders[0] == orders[1]


def test_a_dataset_that_was_iterated_over_can_be_pickled():
    dataset = Dataset.from_tensor_slices(np.arange(6)).map(lambda x: x + 1).cache().batch(2)
    expected = contents(dataset)
    assert contents(shipped(dataset)) == expected
