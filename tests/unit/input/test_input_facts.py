"""What workers compare of the datasets that they divide. No devices."""

import numpy as np
import pytest

from stratagem._src.input.input_facts import input_facts
from stratagem.data import Dataset, Options
from stratagem.data.experimental import AutoShardPolicy


def differing(one, other):
    """Returns the facts in which two datasets differ."""
    facts, others = input_facts(one), input_facts(other)
    assert list(facts) == list(others)
    return [name for name in facts if facts[name] != others[name]]


def with_policy(dataset, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def numbers(count=8):
    return Dataset.from_tensor_slices(np.arange(count))


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (numbers().batch(4), numbers().batch(2), "batch size"),
        (numbers(8).batch(4), numbers(9).batch(4), "number of batches"),
        (numbers().batch(4), numbers().shuffle(8, seed=1).batch(4), "plan"),
        (
            numbers().shuffle(8, seed=1).batch(4),
            numbers().shuffle(8, seed=2).batch(4),
            "plan",
        ),
        (numbers().shard(2, 0).batch(4), numbers().shard(2, 1).batch(4), "plan"),
        (
            with_policy(numbers().batch(4), AutoShardPolicy.DATA),
            with_policy(numbers().batch(4), AutoShardPolicy.OFF),
            "sharding policy",
        ),
        (
            numbers().batch(4),
            Dataset.from_tensor_slices(np.arange(8)[::-1]).batch(4),
            "content of arrays or names of files",
        ),
        (
            Dataset.from_tensor_slices(["/data/a", "/data/b"]).batch(2),
            Dataset.from_tensor_slices(["/data/b", "/data/a"]).batch(2),
            "content of arrays or names of files",
        ),
        ([np.ones(4)] * 2, [np.ones(4)] * 3, "number of batches"),
    ],
)
def test_what_differs_is_found(one, other, differs):
    if differs == "sharding policy":  # with OFF there is less to compare
        assert input_facts(one)[differs] != input_facts(other)[differs]
    else:
        assert differs in differing(one, other)


def test_what_says_nothing_about_the_elements_is_left_out():
    one = numbers().shuffle(8).map(lambda x: x).batch(4).prefetch(2)
    other = numbers().shuffle(8).map(lambda x: x, num_parallel_calls=2).batch(4)
    assert differing(one, other) == []
    here = Dataset.from_tensor_slices(["/here/a", "/here/b"]).batch(2)
    there = Dataset.from_tensor_slices(["/there/a", "/there/b"]).batch(2)
    assert differing(here, there) == []


def test_datasets_that_are_not_divided_may_differ_in_size():
    one, other = (with_policy(numbers(n).batch(n), AutoShardPolicy.OFF) for n in (4, 6))
    assert differing(one, other) == []
