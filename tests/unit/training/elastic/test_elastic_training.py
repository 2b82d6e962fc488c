"""The loops of an elastic function where there is nobody to lose."""

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.training.elastic.elastic_loop import ElasticLoop, first_place


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def rows(batch):
    return np.concatenate([np.asarray(part) for part in batch.values]).tolist()


def test_loops_over_numbers_and_batches(strategy):
    dataset = sg.data.Dataset.range(5).batch(2)

    @sg.train.elastic(strategy)
    def train(loop, factor, *, offset):
        seen = []
        for epoch in loop.range(1, 3):
            for batch in loop.batches(dataset):
                seen.append((epoch, loop.step, [x * factor + offset for x in rows(batch)]))
        return seen

    assert train(10, offset=1) == [
        (1, 0, [1, 11]),
        (1, 1, [21, 31]),
        (1, 2, [41]),
        (2, 3, [1, 11]),
        (2, 4, [21, 31]),
        (2, 5, [41]),
    ]
    assert train.__name__ == "train"


def test_every_epoch_has_an_order_of_its_own_whoever_read_the_dataset_before(strategy):
    dataset = sg.data.Dataset.range(12).shuffle(12, seed=3).batch(12)

    @sg.train.elastic(strategy)
    def orders(loop):
        return [rows(batch) for _ in loop.range(3) for batch in loop.batches(dataset)]

    first = orders()
    assert len({tuple(order) for order in first}) == 3
    list(dataset)
    assert orders() == first


def test_iterables_can_be_given_and_iterators_cannot(strategy):
    batches = [np.arange(4), np.arange(4, 8)]

    @sg.train.elastic(strategy)
    def train(loop, data):
        return [rows(batch) for batch in loop.batches(data)]

    assert train(batches) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="can be read only once"):
        train(iter(batches))
    with pytest.raises(ValueError, match="Give the dataset that it was made of"):
        train(strategy.experimental_distribute_dataset(sg.data.Dataset.range(4).batch(2)))


@pytest.mark.parametrize("policy", ["FILE", "HINT", "OFF"])
def test_datasets_that_each_worker_divides_for_itself_are_refused(strategy, policy):
    options = sg.data.Options()
    wanted = sg.data.experimental.AutoShardPolicy[policy]
    options.experimental_distribute.auto_shard_policy = wanted
    dataset = sg.data.Dataset.range(4).batch(2).with_options(options)

    @sg.train.elastic(strategy)
    def train(loop):
        list(loop.batches(dataset))

    with pytest.raises(ValueError, match="Use DATA or AUTO"):
        train()


def test_loops_side_by_side_are_refused(strategy):
    @sg.train.elastic(strategy)
    def train(loop):
        list(zip(loop.range(3), loop.range(3), strict=False))

    with pytest.raises(RuntimeError, match=r"without zip\(\)"):
        train()


def test_an_error_of_the_function_is_its_own_and_leaves_no_thread(strategy):
    @sg.train.elastic(strategy)
    def train(loop):
        for _ in loop.batches(sg.data.Dataset.range(100).batch(2)):
            raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        train()


def test_something_else_than_a_strategy_is_refused():
    with pytest.raises(ValueError, match="needs the strategy that trains"):
        sg.train.elastic(lambda loop: None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((8,), [5, 6, 7]),
        ((3, 8), [5, 6, 7]),
        ((6, 8), [5, 6, 7]),  # begins where a variable says how many are done
        ((1, 10, 2), [5, 7, 9]),
        ((9, 3, -1), [5, 4]),
        ((5,), []),
    ],
)
def test_a_range_goes_on_at_its_number_wherever_it_would_begin(strategy, arguments, expected):
    place = {**first_place(1), "loops": [[0, 5]]}
    loop = ElasticLoop(strategy, place, lambda _: None, lambda: None)
    assert list(loop.range(*arguments)) == expected


def test_a_range_notes_the_number_that_it_begins_with(strategy):
    places = []
    loop = ElasticLoop(
        strategy, first_place(1), lambda place: places.append(place["loops"]), lambda: None
    )
    for _ in loop.range(3, 5):
        for _ in loop.range(2):
            pass
    assert places[:3] == [[[0, 3], [0, 1]], [[0, 3], [0, 2]], [[0, 4]]]
