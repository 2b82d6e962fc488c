"""Random pipelines against the same steps on Python lists."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem.data import Dataset
from stratagem.data.experimental import assert_cardinality

from .pipelines import contents, joined, not_five, pipelines, plain, random_steps, streamed


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_elements_are_those_of_the_naive_reference(pipeline):
    dataset, expected = pipeline
    assert contents(dataset) == expected
    assert contents(dataset) == expected
    assert dataset.cardinality() in (len(expected), UNKNOWN_CARDINALITY)


@settings(max_examples=60, deadline=None)
@given(pipelines(), st.data())
def test_skip_is_the_same_as_dropping(pipeline, data):
    dataset, expected = pipeline
    count = data.draw(st.integers(0, len(expected) + 1))
    assert contents(dataset.skip(count)) == expected[count:]


@settings(max_examples=60, deadline=None)
@given(pipelines(extra=(random_steps(),)), st.data())
def test_a_saved_iterator_goes_on_exactly_where_it_stood(pipeline, data):
    dataset, naive = pipeline
    iterator = iter(dataset)
    for _ in range(data.draw(st.integers(0, len(naive) + 1))):
        if next(iterator, None) is None:
            break
    state = json.loads(json.dumps(iterator.get_state()))
    rest = contents(iterator)

    restored = iter(dataset)
    restored.set_state(state)
    again = data.draw(st.integers(0, len(rest)))
    seen = [plain(next(restored)) for _ in range(again)]
    assert seen == rest[:again]

    state = json.loads(json.dumps(restored.get_state()))
    restored = iter(dataset)
    restored.set_state(state)
    assert contents(restored) == rest[again:]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 60),
    st.integers(1, 70),
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(1, 7),
)
def test_memory_and_stream_shuffle_alike(size, buffer_size, seed, epochs, batch_size):
    def shuffled(dataset):
        return contents(dataset.shuffle(buffer_size, seed).repeat(epochs).batch(batch_size))

    from_memory = shuffled(Dataset.range(size))
    assert from_memory == shuffled(streamed(range(size)))
    numbers = joined(from_memory)
    for epoch in range(epochs):
        order = numbers[epoch * size : (epoch + 1) * size]
        assert sorted(order) == list(range(size))
        assert all(place >= number - (buffer_size - 1) for place, number in enumerate(order))


READ_AHEAD = {
    "prefetch 1": lambda d: d.prefetch(1),
    "prefetch 3": lambda d: d.prefetch(3),
    "prefetch 4 of batches": lambda d: d.batch(2).prefetch(4),
    "parallel map 1": lambda d: d.map(lambda x: int(x), num_parallel_calls=1),
    "parallel map 3": lambda d: d.map(lambda x: int(x), num_parallel_calls=3),
    "interleave": lambda d: d.interleave(lambda x: streamed(range(int(x))), 3, 2),
    "parallel interleave": lambda d: d.interleave(
        lambda x: streamed(range(int(x))), 2, 3, num_parallel_calls=2
    ),
    "inner shuffles": lambda d: d.flat_map(lambda x: streamed(range(int(x))).shuffle(3)),
    "shuffle": lambda d: d.shuffle(4),
    "shard": lambda d: d.shard(3, 1),
    "padded": lambda d: d.map(lambda x: [1] * int(x)).padded_batch(2),
    "windows": lambda d: d.window(3, 1).flat_map(lambda window: window.batch(2)),
    "windows far apart": lambda d: d.window(1, 2, 2).flat_map(lambda window: window),
    "windows of a table": lambda d: (
        Dataset.range(11).window(3, 2, 2).flat_map(lambda window: window)
    ),
    "shuffled windows": lambda d: d.window(2).shuffle(3, seed=1).flat_map(lambda w: w.shuffle(2)),
    "groups": lambda d: d.group_by_window(lambda x: x % 3, lambda key, group: group.batch(2), 3),
    "shuffled groups": lambda d: d.shuffle(9).group_by_window(
        lambda x: x % 2, lambda key, group: group.shuffle(4), 4
    ),
    "buckets": lambda d: d.map(lambda x: [1] * int(x)).bucket_by_sequence_length(
        lambda x: len(x), [4, 7], [2, 2, 1]
    ),
    "samples": lambda d: Dataset.sample_from_datasets([d, d.shuffle(4)]),
    "samples, other each time": lambda d: Dataset.sample_from_datasets(
        [d, d], rerandomize_each_iteration=True
    ).repeat(2),
    "samples by a dataset": lambda d: Dataset.sample_from_datasets(
        [d, d.skip(4)], d.map(lambda x: (float(x), 1.0))
    ),
    "choices": lambda d: Dataset.choose_from_datasets(
        [d, d.map(lambda x: -int(x))], d.map(lambda x: x % 2)
    ),
    "take_while": lambda d: d.take_while(lambda x: x < 6),
    "scan": lambda d: d.scan((np.int64(1), b"s"), lambda s, x: ((s[0] * 2, s[1] + b"s"), s)),
    "unique": lambda d: d.map(lambda x: x // 2).unique(),
    "errors": lambda d: d.map(not_five).ignore_errors(),
    "errors on the way": lambda d: (
        d.filter(lambda x: not_five(x) > 0).prefetch(3).map(int, 2).ignore_errors()
    ),
    "ragged": lambda d: d.map(lambda x: np.ones(int(x))).ragged_batch(2),
    "random": lambda d: Dataset.random(rerandomize_each_iteration=True).take(5).repeat(2),
    "counter": lambda d: Dataset.counter(0.1, 0.7, np.float32).batch(2).take(5),
    "asserted": lambda d: d.apply(assert_cardinality(11)),
    "table, parallel": lambda d: Dataset.range(11).map(lambda x: x + 1, 2).batch(2),
}


@pytest.mark.parametrize("name", READ_AHEAD)
def test_state_at_every_element(name):
    dataset = READ_AHEAD[name](streamed(range(11)))
    iterator = iter(dataset)
    states, elements = [iterator.get_state()], []
    for element in iterator:
        elements.append(plain(element))
        states.append(json.loads(json.dumps(iterator.get_state())))
    assert len(elements) > 3
    for position, state in enumerate(states):
        restored = iter(dataset)
        restored.set_state(state)
        assert contents(restored) == elements[position:]


@pytest.mark.parametrize("read_ahead", [False, True])
def test_state_is_small_whatever_the_buffer(read_ahead):
    dataset = streamed(range(5000)).shuffle(1000, seed=1).repeat().batch(10)
    if read_ahead:
        dataset = dataset.prefetch(8)
    iterator = iter(dataset)
    for _ in range(700):
        next(iterator)
    assert len(json.dumps(iterator.get_state())) < 700
    iterator.close()
