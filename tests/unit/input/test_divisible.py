"""Elements that are not arrays with a row for each example, and grouped ones that are."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import stratagem as sg
from stratagem.data import Dataset, InvalidArgumentError, RaggedTensor


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def sentences(count=4):
    return Dataset.range(1, count + 1).map(lambda n: np.full(int(n), n, np.float32))


def test_ragged_rows_are_not_divided_even_if_their_numbers_fit(strategy):
    ragged = sentences(2).ragged_batch(2)
    first = next(iter(ragged))
    assert len(first.flat_values) == len(first.row_splits) == 3
    with pytest.raises(InvalidArgumentError, match="RaggedTensor cannot be split"):
        list(strategy.experimental_distribute_dataset(ragged))


def test_ragged_rows_go_to_one_replica_eagerly_and_compiled():
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")

    def sums(ragged):
        return jax.ops.segment_sum(ragged.flat_values, ragged.value_rowids(), ragged.nrows())

    def rows(ragged):
        return ragged.flat_values.sum(), ragged.row_splits.shape[0]

    compiled = sg.function(lambda ragged: strategy.run(rows, args=(ragged,)))
    distributed = strategy.experimental_distribute_dataset(sentences().ragged_batch(2))
    found = [strategy.run(sums, args=(batch,)).tolist() for batch in distributed]
    assert found == [[1, 4], [9, 16]]
    assert [float(compiled(batch)[0]) for batch in distributed] == [5, 25]


def test_ragged_batches_are_dealt_and_a_replica_without_one_has_no_rows(strategy):
    distributed = strategy.distribute_datasets_from_function(
        lambda context: sentences(5).ragged_batch(2)
    )
    totals = [
        [
            (values.tolist(), splits.tolist())
            for values, splits in zip(
                strategy.experimental_local_results(batch.flat_values),
                strategy.experimental_local_results(batch.row_splits),
                strict=True,
            )
        ]
        for batch in distributed
    ]
    assert totals[-1] == [([5] * 5, [0, 5]), ([], [0])]
    assert all(isinstance(batch, RaggedTensor) for batch in distributed)


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]], ids=["one", "two"])
def test_windows_are_refused(devices):
    strategy = sg.distribute.MirroredStrategy(devices)
    with pytest.raises(InvalidArgumentError, match="a window is a dataset"):
        list(strategy.experimental_distribute_dataset(Dataset.range(8).window(2)))


def test_buckets_are_divided_and_resumed(strategy):
    buckets = (
        Dataset.range(40)
        .map(lambda n: np.full(int(n) % 7 + 1, n))
        .shuffle(9, seed=1)
        .bucket_by_sequence_length(lambda x: len(x), [4], [4, 2])
    )
    distributed = strategy.experimental_distribute_dataset(buckets)

    def parts(iterator):
        return [[value.tolist() for value in batch.values] for batch in iterator]

    iterator = iter(distributed)
    for _ in range(5):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    rest = parts(iterator)
    assert len(rest) > 5
    restored = iter(distributed)
    restored.set_state(state)
    assert parts(restored) == rest
