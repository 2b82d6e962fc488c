"""Datasets that are chosen from; the expected values are what tf.data gives."""

from __future__ import annotations

import numpy as np
import pytest

from stratagem._src.data.transforms import directed_interleave
from stratagem.data import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
    InvalidArgumentError,
    TensorSpec,
    TextLineDataset,
    experimental,
    num_files,
    seed_shuffles,
    shard_by_data,
    shard_by_file,
)

from .pipelines import contents, streamed


def choices(*numbers):
    return Dataset.from_tensor_slices(np.array(numbers))


@pytest.mark.parametrize(
    ("stop", "expected"), [(True, [0, 10, 11, 1, 2]), (False, [0, 10, 11, 1, 2, 12])]
)
def test_choices(stop, expected):
    chosen = Dataset.choose_from_datasets(
        [Dataset.range(3), Dataset.range(10, 13)],
        choices(0, 1, 1, 0, 0, 0, 0, 1),
        stop_on_empty_dataset=stop,
    )
    assert contents(chosen) == expected
    assert contents(chosen.repeat(2)) == expected * 2


def test_the_spec_covers_all_datasets():
    batches = [Dataset.range(3).batch(2), Dataset.range(8).batch(2, drop_remainder=True)]
    spec = Dataset.choose_from_datasets(batches, choices(0, 1)).element_spec
    assert spec == TensorSpec([None], "int64")
    with pytest.raises(InvalidArgumentError, match="choose_from_datasets needs the same types"):
        print(
            Dataset.choose_from_datasets(
                [Dataset.range(3), Dataset.from_tensors("a")], choices(0)
            ).element_spec
        )


@pytest.mark.parametrize("number", [2, -1])
def test_a_choice_that_there_is_not(number):
    chosen = Dataset.choose_from_datasets([Dataset.range(3)] * 2, choices(0, number))
    with pytest.raises(InvalidArgumentError, match=rf"must be in \[0, 2\).* got {number}"):
        list(chosen)


def test_choices_that_are_no_integers():
    chosen = Dataset.choose_from_datasets([Dataset.range(3)], Dataset.from_tensors([1, 2]))
    with pytest.raises(InvalidArgumentError, match="must yield one integer at a time, got array"):
        list(chosen)
    with pytest.raises(InvalidArgumentError, match="choice_dataset must be, or return, a Dataset"):
        Dataset.choose_from_datasets([Dataset.range(3)], [0, 1])
    with pytest.raises(InvalidArgumentError, match="at least one dataset, got none"):
        Dataset.choose_from_datasets([], choices(0))
    with pytest.raises(
        InvalidArgumentError, match="Each of datasets must be, or return, a Dataset"
    ):
        Dataset.choose_from_datasets([3], choices(0))


def test_choices_that_can_never_be_fulfilled_do_not_hang(monkeypatch):
    monkeypatch.setattr(directed_interleave, "_MAX_EXHAUSTED_CHOICES", 1000)
    chosen = Dataset.choose_from_datasets(
        [Dataset.range(2), Dataset.range(3)], choices(0).repeat(), stop_on_empty_dataset=False
    )
    iterator = iter(chosen)
    assert [int(next(iterator)) for _ in range(2)] == [0, 1]
    with pytest.raises(InvalidArgumentError, match="exhausted datasets 1000 times in a row"):
        next(iterator)


@pytest.mark.parametrize(
    ("first", "choosing", "stop", "expected"),
    [
        (Dataset.range(5), Dataset.range(2), True, UNKNOWN_CARDINALITY),
        (Dataset.range(5).repeat(), Dataset.range(2), False, UNKNOWN_CARDINALITY),
        (Dataset.range(5).repeat(), Dataset.range(2).repeat(), False, INFINITE_CARDINALITY),
        (Dataset.range(5).repeat(), Dataset.range(2).repeat(), True, UNKNOWN_CARDINALITY),
        (Dataset.range(5), Dataset.range(0), True, 0),
    ],
    ids=["finite", "finite choices", "infinite", "stops", "no choices"],
)
def test_cardinality(first, choosing, stop, expected):
    chosen = Dataset.choose_from_datasets([first, Dataset.range(3)], choosing, stop)
    assert chosen.cardinality() == expected


def test_samples_are_as_frequent_as_their_weights():
    sampled = Dataset.sample_from_datasets(
        [Dataset.range(9000), Dataset.range(9000, 19000)], weights=[2, 6], seed=1
    )
    high = sum(int(x) >= 9000 for x in sampled.take(4000))
    assert abs(high - 3000) < 150
    numbers = contents(sampled)
    assert sorted(numbers) == list(range(19000))
    assert [n for n in numbers if n < 9000] == list(range(9000))


def test_samples_end_with_the_first_dataset_if_asked():
    sampled = Dataset.sample_from_datasets(
        [Dataset.range(10), Dataset.range(100, 1100)], seed=2, stop_on_empty_dataset=True
    )
    numbers = contents(sampled)
    assert [n for n in numbers if n < 100] == list(range(10))
    assert len(numbers) < 100


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([0.0, 1.0], [10, 11, 12]), ([0.0, 0.0], []), ([5, 0], [0, 1, 2])],
    ids=["second", "none", "first"],
)
def test_datasets_without_weight_are_left_out(weights, expected):
    sampled = Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(10, 13)], weights)
    assert contents(sampled) == expected


def test_weights_from_a_dataset():
    weights = Dataset.from_tensor_slices([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    sampled = Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(10, 13)], weights)
    assert contents(sampled) == [0, 10, 11, 1]
    short = Dataset.sample_from_datasets([Dataset.range(1), Dataset.range(10, 13)], weights)
    assert contents(short) == [0, 10, 11]


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, float("nan")]], ids=str)
def test_bad_weights(weights):
    datasets = [Dataset.range(3), Dataset.range(3)]
    with pytest.raises(InvalidArgumentError, match="weights must be"):
        Dataset.sample_from_datasets(datasets, weights)
    with pytest.raises(InvalidArgumentError, match="weights must be"):
        list(Dataset.sample_from_datasets(datasets, Dataset.from_tensors(weights)))


@pytest.mark.parametrize("seed", [None, 7])
def test_samples_are_the_same_in_each_iteration_unless_asked(seed):
    datasets = [Dataset.range(30), Dataset.range(30, 60)]
    same = Dataset.sample_from_datasets(datasets, seed=seed)
    assert contents(same) == contents(same)
    assert contents(same.repeat(2)) == contents(same) * 2
    other = Dataset.sample_from_datasets(datasets, seed=seed, rerandomize_each_iteration=True)
    assert contents(other) != contents(other)
    twice = contents(other.repeat(2))
    assert twice[:60] != twice[60:]


def test_random_numbers_are_the_same_in_each_iteration_unless_asked():
    numbers = Dataset.random(seed=3).take(4)
    assert contents(numbers) == contents(Dataset.random(seed=3).take(4)) == contents(numbers)
    assert contents(numbers) != contents(Dataset.random(seed=4).take(4))
    assert contents(numbers.repeat(2)) == contents(numbers) * 2
    other = Dataset.random(seed=3, rerandomize_each_iteration=True).take(4)
    assert contents(other) != contents(other)
    many = Dataset.random().batch(5000).take(2)
    values = np.concatenate(list(many))
    assert values.dtype == np.int64
    assert 0 <= values.min() < 2**27 < 2**32 - 2**27 < values.max() < 2**32
    assert abs(values.mean() / 2**31 - 1) < 0.05
    assert Dataset.random().cardinality() == INFINITE_CARDINALITY


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), [0, 1, 2, 3]),
        ((2, 3), [2, 5, 8, 11]),
        ((126, 1, "int8"), [126, 127, -128, -127]),
        ((1.0, 0.1, np.float32), [np.float32(x) for x in (1.0, 1.1, 1.2, 1.3000001)]),
    ],
    ids=["plain", "step", "wraps", "floats"],
)
def test_counters(arguments, expected):
    counter = Dataset.counter(*arguments)
    assert contents(counter.take(4)) == expected
    assert contents(counter.skip(2).take(2)) == expected[2:]
    assert counter.take(4).batch(4).get_single_element().tolist() == expected
    assert counter.cardinality() == INFINITE_CARDINALITY


def test_bad_counters():
    with pytest.raises(InvalidArgumentError, match=r"start must be one int64, got 1\.5"):
        Dataset.counter(1.5)
    with pytest.raises(InvalidArgumentError, match="integers or floats, got dtype='string'"):
        Dataset.counter(dtype="string")


def test_workers_that_divide_samples_agree():
    def build():
        return Dataset.sample_from_datasets(
            [Dataset.range(30).shuffle(30), streamed(range(30, 60))],
            rerandomize_each_iteration=True,
        )

    workers = [shard_by_data(seed_shuffles(build(), 5), 3, index) for index in range(3)]
    numbers = [number for worker in workers for number in contents(worker)]
    assert sorted(numbers) == list(range(60))


def test_files_of_chosen_datasets_are_divided_and_choices_are_not(tmp_path):
    for kind in "ab":
        for number in range(4):
            (tmp_path / f"{kind}{number}").write_text(f"{kind}{number}\n" * 2)
    (tmp_path / "choices").write_text("0\n1\n" * 8)
    datasets = [
        TextLineDataset(Dataset.list_files(str(tmp_path / f"{kind}*"), shuffle=False))
        for kind in "ab"
    ]
    choosing = TextLineDataset(tmp_path / "choices").map(lambda line: np.int64(line))
    mixed = Dataset.choose_from_datasets(datasets, choosing, stop_on_empty_dataset=False)
    assert num_files(mixed) == 4
    shards = [contents(shard_by_file(mixed, 2, index)) for index in range(2)]
    assert shards[0] == [b"a0", b"b0"] * 2 + [b"a2", b"b2"] * 2
    assert sorted(shards[0] + shards[1]) == sorted(contents(mixed))


def test_older_names_of_the_methods():
    numbers = [Dataset.range(2), Dataset.range(10, 12)]
    chosen = experimental.choose_from_datasets(numbers, Dataset.from_tensor_slices([1, 0, 0, 0, 1]))
    assert [int(x) for x in chosen] == [10, 0, 1, 11]  # goes on where a dataset has ended
    sampled = experimental.sample_from_datasets(numbers, weights=[0.0, 1.0], seed=3)
    assert [int(x) for x in sampled][:2] == [10, 11]
