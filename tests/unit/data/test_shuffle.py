from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem._src.data.transforms.shuffle_order import BLOCK, ShuffleOrder, emit
from stratagem.data import Dataset, InvalidArgumentError

from .pipelines import contents, streamed


def test_every_iteration_and_every_epoch_has_another_order():
    dataset = Dataset.range(50).shuffle(50, seed=7)
    first, second = contents(dataset), contents(dataset)
    assert first != second
    twice = contents(Dataset.range(50).shuffle(50, seed=7).repeat(2))
    assert twice[:50] != twice[50:]


def test_the_orders_follow_from_the_seed():
    def orders(seed):
        dataset = Dataset.range(50).shuffle(50, seed=seed)
        return [contents(dataset) for _ in range(3)]

    assert orders(7) == orders(7)
    assert orders(7) != orders(8)
    assert orders(-1) == orders(-1)
    assert orders(None) != orders(None)


def test_an_iteration_over_a_derived_dataset_counts():
    shuffled = Dataset.range(50).shuffle(50, seed=7)
    assert contents(shuffled.batch(50)) != contents(shuffled.batch(50))


@pytest.mark.parametrize("seed", [None, 3])
def test_without_reshuffling_every_iteration_and_epoch_is_the_same(seed):
    dataset = Dataset.range(50).shuffle(50, seed, reshuffle_each_iteration=False)
    twice = contents(dataset.repeat(2))
    assert twice[:50] == twice[50:] == contents(dataset)
    assert twice[:50] != list(range(50))


def test_shuffles_inside_flat_map_follow_from_their_seed():
    def build(seed):
        return Dataset.range(4).flat_map(lambda _: Dataset.range(9).shuffle(9, seed))

    dataset = build(3)
    orders = [contents(dataset) for _ in range(2)]
    assert orders == [contents(again) for again in [build(3)] for _ in range(2)]
    assert orders[0] != orders[1]
    assert orders[0][:9] != orders[0][9:18]
    assert contents(build(None)) != contents(build(None))
    fixed = Dataset.range(2).flat_map(lambda _: Dataset.range(9).shuffle(9, 3, False))
    assert contents(fixed)[:9] == contents(fixed)[9:]


def test_element_spec_does_not_change_the_order():
    def build():
        return streamed(range(30)).shuffle(30, seed=1).map(lambda x: x + 1)

    looked = build()
    assert looked.element_spec.dtype == np.int64
    assert contents(looked) == contents(build())


@pytest.mark.parametrize("make", [Dataset.range, lambda n: streamed(range(n))])
def test_a_full_buffer_gives_every_permutation(make):
    seen = {tuple(contents(make(3).shuffle(3, seed=seed))) for seed in range(200)}
    assert len(seen) == 6


def test_a_small_buffer_mixes_beyond_its_size():
    order = contents(Dataset.range(3000).shuffle(100, seed=1))
    late = [place - number for place, number in enumerate(order)]
    assert max(late) > 100
    assert min(late) >= -99


def test_a_buffer_of_one_keeps_the_order():
    assert contents(Dataset.range(9).shuffle(1)) == list(range(9))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30))
def test_emit_is_one_pick_at_a_time(picks):
    slots = [10, 11, 12, 13, 14]
    incoming = list(range(100, 100 + len(picks)))
    vector = np.array(slots)
    given_out = emit(vector, np.array(picks, np.int64), np.array(incoming, np.int64))
    expected = []
    for pick, value in zip(picks, incoming, strict=True):
        expected.append(slots[pick])
        slots[pick] = value
    assert given_out.tolist() == expected
    assert vector.tolist() == slots


def test_the_slots_after_many_blocks_are_those_of_emitting():
    order = ShuffleOrder([1, 2], 50)
    slots = np.arange(50)
    for block in range(3):
        first = 50 + block * BLOCK
        emit(slots, order.picks(block), np.arange(first, first + BLOCK))
    assert order.slots_after(3 * BLOCK).tolist() == slots.tolist()


def test_a_long_stream_shuffles_like_memory_across_blocks():
    size = 2 * BLOCK + 100
    from_memory = contents(Dataset.range(size).shuffle(300, seed=2))
    assert from_memory == contents(streamed(range(size)).shuffle(300, seed=2))


@pytest.mark.parametrize("buffer_size", [0, -1, 1.5, None])
def test_bad_buffer_sizes(buffer_size):
    with pytest.raises(InvalidArgumentError, match="buffer_size must be"):
        Dataset.range(3).shuffle(buffer_size)
