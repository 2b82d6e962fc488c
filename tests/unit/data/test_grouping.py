"""Windows, groups and buckets; the expected values are what tf.data gives."""

from __future__ import annotations

import collections
import copy

import cloudpickle
import numpy as np
import pytest

from stratagem._src.data.plan.sparse_resume_points import SparseResumePoints
from stratagem.data import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
    DatasetSpec,
    InvalidArgumentError,
    RaggedTensor,
    TensorSpec,
)

from .pipelines import contents, streamed


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize(
    ("arguments", "size", "expected"),
    [
        ({"size": 3}, 5, [[0, 1, 2], [3, 4]]),
        ({"size": 3, "drop_remainder": True}, 5, [[0, 1, 2]]),
        ({"size": 3, "shift": 1}, 5, [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4], [4]]),
        ({"size": 3, "shift": 1, "drop_remainder": True}, 5, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]),
        ({"size": 2, "shift": 1, "stride": 2}, 5, [[0, 2], [1, 3], [2, 4], [3], [4]]),
        ({"size": 2, "shift": 3, "stride": 2, "drop_remainder": True}, 7, [[0, 2], [3, 5]]),
        ({"size": 3, "shift": 5, "stride": 2}, 7, [[0, 2, 4], [5]]),
        ({"size": 3, "shift": 2, "stride": 2, "drop_remainder": True}, 7, [[0, 2, 4], [2, 4, 6]]),
        ({"size": 2, "shift": 7}, 10, [[0, 1], [7, 8]]),
        ({"size": 4, "drop_remainder": True}, 0, []),
    ],
    ids=str,
)
def test_windows(arguments, size, expected, memory):
    windows = (Dataset.range(size) if memory else streamed(range(size))).window(**arguments)
    assert contents(windows) == expected
    assert windows.cardinality() == (len(expected) if memory else UNKNOWN_CARDINALITY)
    assert [window.cardinality() for window in windows] == list(map(len, expected))


def test_a_window_has_a_dataset_for_each_component():
    pair = collections.namedtuple("Pair", "a b")
    rows = Dataset.from_tensor_slices({"p": pair(np.arange(4), np.ones((4, 2))), "s": list("wxyz")})
    windows = rows.window(3, shift=2)
    inner = DatasetSpec(TensorSpec((), "string"))
    assert windows.element_spec["s"] == inner
    assert inner.is_compatible_with(next(iter(windows))["s"])
    assert not inner.is_compatible_with(Dataset.range(3))
    assert contents(next(iter(windows))["p"].a) == [0, 1, 2]
    batches = windows.flat_map(lambda window: Dataset.zip(window).batch(2))
    assert [batch["s"].tolist() for batch in batches] == [[b"w", b"x"], [b"y"], [b"y", b"z"]]
    assert batches.element_spec["p"].b == TensorSpec([None, 2], "float64")


def test_windows_of_elements_of_different_shapes():
    ragged = streamed(range(4)).map(lambda n: np.full(int(n), n))
    windows = ragged.window(2).flat_map(lambda window: window.padded_batch(2))
    assert contents(windows) == [[[0], [1]], [[2, 2, 0], [3, 3, 3]]]


def test_overlapping_windows_share_nothing_that_can_be_changed():
    arrays = streamed(range(3)).map(lambda n: np.full(2, n)).window(2, shift=1)
    first = next(iter(arrays))
    with pytest.raises(ValueError, match="read-only"):
        next(iter(first))[0] = 7
    rows = Dataset.from_tensor_slices(np.arange(6).reshape(3, 2)).window(2)
    window = next(iter(rows))
    next(iter(window))[0] = 7
    assert contents(window) == [[0, 1], [2, 3]]


def test_windows_are_mapped_filtered_kept_and_joined():
    windows = Dataset.range(7).window(3)
    assert contents(windows.map(lambda w: w.reduce(np.int64(0), lambda a, b: a + b))) == [3, 12, 6]
    full = windows.filter(lambda window: window.cardinality() == 3)
    assert contents(full.cache().repeat(2)) == [[0, 1, 2], [3, 4, 5]] * 2
    again = windows.map(lambda window: window.map(lambda x: x * 10))
    assert isinstance(again.element_spec, DatasetSpec)
    assert contents(again.skip(2).concatenate(windows.take(1))) == [[60], [0, 1, 2]]


@pytest.mark.parametrize("step", [lambda d: d.batch(2), lambda d: d.unbatch()], ids=["batch", "un"])
def test_windows_are_not_arrays(step):
    with pytest.raises(InvalidArgumentError, match=r"is a dataset itself\. Use flat_map"):
        list(step(Dataset.range(7).window(3)))
    with pytest.raises(InvalidArgumentError, match=r"is a dataset itself\. Use flat_map"):
        print(step(Dataset.range(7).window(3)).element_spec)


def test_windows_are_not_kept_in_files(tmp_path):
    windows = Dataset.range(4).window(2)
    with pytest.raises(InvalidArgumentError, match="cannot be saved"):
        list(windows.cache(str(tmp_path / "cache")))
    with pytest.raises(InvalidArgumentError, match="RaggedTensor and None, got DatasetSpec"):
        windows.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("argument", ["size", "shift", "stride"])
def test_bad_windows(argument):
    with pytest.raises(InvalidArgumentError, match=f"{argument} must be at least 1, got 0"):
        Dataset.range(3).window(**{"size": 2, argument: 0})


@pytest.mark.parametrize(
    ("key", "sizes", "count", "expected"),
    [
        (lambda x: x % 3, {"window_size": 2}, 10, [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]]),
        (
            lambda x: x % 3,
            {"window_size_func": lambda key: key + 2},
            20,
            [
                [0, 3],
                [1, 4, 7],
                [6, 9],
                [2, 5, 8, 11],
                [12, 15],
                [10, 13, 16],
                [18],
                [19],
                [14, 17],
            ],
        ),
        (lambda x: 2 - x, {"window_size": 3}, 5, [[4], [3], [2], [1], [0]]),
        (lambda x: x, {"window_size": 3}, 0, []),
    ],
    ids=["modulo", "size by key", "negative keys", "nothing"],
)
def test_groups(key, sizes, count, expected):
    grouped = Dataset.range(count).group_by_window(key, lambda key, group: group.batch(10), **sizes)
    assert contents(grouped) == expected


def test_a_group_becomes_any_dataset():
    named = Dataset.from_tensor_slices((np.arange(6), list("aababb"))).group_by_window(
        lambda number, letter: letter[0],
        lambda key, group: Dataset.zip(Dataset.from_tensors(key), group.batch(2)),
        window_size=2,
    )
    assert contents(named) == [
        (97, ([0, 1], [b"a", b"a"])),
        (98, ([2, 4], [b"b", b"b"])),
        (97, ([3], [b"a"])),
        (98, ([5], [b"b"])),
    ]
    assert named.element_spec[1][0] == TensorSpec([None], "int64")


def test_a_group_shuffles_differently_each_time():
    grouped = Dataset.range(64).group_by_window(
        lambda x: 0, lambda key, group: group.shuffle(64), window_size=64
    )
    first, second = contents(grouped), contents(grouped)
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second


def test_a_rare_group_is_restored_without_making_everything_again():
    made = []

    def make(number):
        made.append(int(number))
        return int(number)

    grouped = (
        streamed(range(700))
        .map(make)
        .group_by_window(lambda x: x == 7, lambda key, group: group.batch(5), window_size=5)
    )
    iterator = iter(grouped)
    for _ in range(120):
        last = next(iterator)
    state = iterator.get_state()
    assert len(str(state)) < 500
    made.clear()
    iterator.set_state(state)
    assert len(made) <= 2 * 64
    rest = contents(iterator)
    assert rest[0] == [int(last[-1]) + step for step in range(1, 6)]
    assert rest[-1] == [7]


def test_elements_that_are_held_are_found_again():
    class Numbers:
        """A stream of numbers that counts what it makes."""

        made = 0

        def __init__(self):
            self.position = 0

        def __next__(self):
            Numbers.made += 1
            self.position += 1
            return self.position - 1

        def get_state(self):
            return self.position

        def set_state(self, state):
            self.position = state

        def close(self):
            pass

    points = SparseResumePoints(Numbers())
    held = {5, 700, 701, 1500}
    for number in range(1501):
        assert points.next_element() == number
        if number in held or number == 900:
            points.hold(number)
    points.release(900)
    saved = points.get_state()
    assert len(saved["runs"]) == 3
    Numbers.made = 0
    restored = SparseResumePoints(Numbers())
    found = dict(restored.resume(saved, Numbers))
    assert held <= found.keys()
    assert all(number == element for number, element in found.items())
    assert Numbers.made <= 3 * 64
    for number in held:
        restored.hold(number)
    assert restored.get_state() == saved
    assert restored.next_element() == 1501


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either window_size or window_size_func"),
        ({"window_size": 2, "window_size_func": lambda key: 2}, "either window_size or"),
        ({"window_size": 0}, "must be at least 1, got 0"),
        ({"window_size": 2, "key_func": lambda x: 0.5}, "key_func must return one integer, got"),
        ({"window_size": 2, "reduce_func": lambda key, group: 3}, "reduce_func must be, or return"),
        ({"window_size": 2, "reduce_func": 3}, "reduce_func must be callable, got 3"),
        ({"window_size": 2, "key_func": lambda x: None}, "key_func must return an array or"),
    ],
    ids=["none", "both", "zero", "key", "reduce", "not callable", "nothing"],
)
def test_bad_groups(arguments, message):
    functions = {"key_func": lambda x: x % 2, "reduce_func": lambda key, group: group.batch(2)}
    with pytest.raises(InvalidArgumentError, match=message):
        list(Dataset.range(4).group_by_window(**{**functions, **arguments}))


def test_an_error_of_a_key_function_is_its_own_and_the_others_go_on():
    def key(x):
        if x == 3:
            raise KeyError("no key for three")
        return x % 2

    grouped = Dataset.range(6).group_by_window(key, lambda key, group: group.batch(3), 3)
    iterator = iter(grouped)
    with pytest.raises(KeyError, match="no key for three"):
        next(iterator)
    state = iterator.get_state()
    assert contents(iterator) == [[0, 2, 4], [1, 5]]
    iterator.set_state(state)
    assert contents(iterator) == [[0, 2, 4], [1, 5]]


SEQUENCES = [[0], [1, 2, 3, 4], [5, 6, 7], [7, 8, 9, 10, 11], [13, 14, 15, 16, 19, 20], [21, 22]]


def sequences():
    return Dataset.from_generator(lambda: SEQUENCES, output_signature=TensorSpec([None], "int64"))


@pytest.mark.parametrize(
    ("boundaries", "sizes", "options", "expected"),
    [
        (
            [3, 5],
            [2, 2, 2],
            {},
            [
                [[1, 2, 3, 4], [5, 6, 7, 0]],
                [[7, 8, 9, 10, 11, 0], [13, 14, 15, 16, 19, 20]],
                [[0, 0], [21, 22]],
            ],
        ),
        (
            [3, 5, 8],
            [2, 2, 2, 2],
            {"pad_to_bucket_boundary": True, "padding_values": np.int64(-1)},
            [
                [[1, 2, 3, 4], [5, 6, 7, -1]],
                [[7, 8, 9, 10, 11, -1, -1], [13, 14, 15, 16, 19, 20, -1]],
                [[0, -1], [21, 22]],
            ],
        ),
        ([3, 5], [2, 3, 2], {"drop_remainder": True}, None),
        ([3], [1, 2], {"padded_shapes": [7]}, None),
    ],
    ids=["plain", "to the boundary", "drop", "shapes"],
)
def test_buckets(boundaries, sizes, options, expected):
    def length(sequence):
        return len(sequence)

    bucketed = sequences().bucket_by_sequence_length(length, boundaries, sizes, **options)
    if "drop_remainder" in options:
        expected = [
            [[7, 8, 9, 10, 11, 0], [13, 14, 15, 16, 19, 20]],
            [[0, 0], [21, 22]],
        ]
    if "padded_shapes" in options:
        assert {batch.shape[1] for batch in bucketed} == {7}
        return
    assert contents(bucketed) == expected


def test_buckets_without_padding():
    pairs = Dataset.from_tensor_slices((np.arange(4), np.array([1, 9, 2, 8])))
    bucketed = pairs.bucket_by_sequence_length(lambda x, size: size, [5], [2, 2], no_padding=True)
    assert contents(bucketed) == [([0, 2], [1, 2]), ([1, 3], [9, 8])]
    assert bucketed.cardinality() == UNKNOWN_CARDINALITY
    assert (
        pairs.repeat()
        .bucket_by_sequence_length(lambda x, size: size, [5], [2, 2], no_padding=True)
        .cardinality()
        == INFINITE_CARDINALITY
    )


@pytest.mark.parametrize(
    ("boundaries", "sizes", "message"),
    [
        ([3, 5], [2, 2], "one more entry than bucket_boundaries, got 2 and 2"),
        ([5, 3], [2, 2, 2], "must increase"),
        ([3], [2, 0], "bucket_batch_sizes must be at least 1"),
        ([3, 5], [2, 2, 2], "must be shorter than the last of bucket_boundaries, 5, got one of"),
    ],
    ids=["number", "order", "size", "too long"],
)
def test_bad_buckets(boundaries, sizes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        list(
            sequences().bucket_by_sequence_length(
                lambda x: len(x), boundaries, sizes, pad_to_bucket_boundary=True
            )
        )


@pytest.mark.parametrize(
    ("shape", "arrays", "values", "splits"),
    [
        ([None], [[], [1.0], [2.0, 2.0]], [1, 2, 2], [[0, 0, 1, 3]]),
        (
            [None, None],
            [np.ones((1, 2)), np.full((2, 1), 2), np.ones((0, 2))],
            [1, 1, 2, 2],
            [[0, 1, 3, 3], [0, 2, 3, 4]],
        ),
        (
            [2, None],
            [np.ones((2, 2)), np.full((2, 1), 2)],
            [1, 1, 1, 1, 2, 2],
            [[0, 2, 4], [0, 2, 4, 5, 6]],
        ),
        (
            [None, 2],
            [np.ones((2, 2)), np.full((1, 2), 2)],
            [[1, 1], [1, 1], [2, 2]],
            [[0, 2, 3]],
        ),
    ],
    ids=["vectors", "matrices", "rows", "columns"],
)
def test_ragged_batches(shape, arrays, values, splits):
    signature = TensorSpec(shape, "float32")
    given = [np.asarray(array, np.float32) for array in arrays]
    dataset = Dataset.from_generator(lambda: given, output_signature=signature)
    for dtype in (np.int64, np.int32):
        ragged = dataset.ragged_batch(4, row_splits_dtype=dtype).get_single_element()
        assert ragged.flat_values.tolist() == values
        assert [level.tolist() for level in ragged.nested_row_splits] == splits
        assert ragged.row_splits.dtype == dtype
        assert ragged.to_list() == [array.tolist() for array in given]
        assert len(ragged) == ragged.nrows() == len(given)
        assert ragged.row_lengths().tolist() == [len(array) for array in given]
        assert ragged.ragged_rank == len(splits)
        with pytest.raises(IndexError, match="the index 9"):
            ragged[9]


def test_ragged_batches_have_specs_sizes_and_dense_parts():
    numbers = streamed(range(5)).map(lambda n: (n, np.arange(int(n))))
    batches = numbers.ragged_batch(2, drop_remainder=True)
    dense, ragged = batches.element_spec
    assert dense == TensorSpec([2], "int64")
    assert ragged.flat_values == TensorSpec([None], "int64")
    assert ragged.row_splits == TensorSpec([3], "int64")
    assert contents(batches) == [([0, 1], [[], [0]]), ([2, 3], [[0, 1], [0, 1, 2]])]
    assert [batch.tolist() for batch in Dataset.range(3).ragged_batch(2)] == [[0, 1], [2]]
    assert Dataset.range(5).ragged_batch(2).cardinality() == 3
    assert contents(batches.map(lambda n, ragged: ragged.value_rowids())) == [
        [1],
        [0, 0, 1, 1, 1],
    ]


def test_ragged_batches_are_structures_of_arrays(tmp_path):
    batches = streamed(range(4)).map(lambda n: np.arange(int(n))).ragged_batch(2)
    for _ in range(2):
        assert contents(batches.cache(str(tmp_path / "cache"))) == [[[], [0]], [[0, 1], [0, 1, 2]]]
    batches.save(tmp_path / "saved")
    loaded = Dataset.load(tmp_path / "saved")
    assert isinstance(loaded.element_spec, RaggedTensor)
    assert contents(loaded) == contents(batches)


def test_bad_ragged_batches():
    with pytest.raises(InvalidArgumentError, match="row_splits_dtype must be int32 or int64"):
        Dataset.range(3).ragged_batch(2, row_splits_dtype="float32")
    unknown = Dataset.from_generator(lambda: [[1], [2, 3]], output_types="int32")
    with pytest.raises(InvalidArgumentError, match="needs the rank of every component"):
        list(unknown.ragged_batch(2))
    mixed = streamed(range(2)).map(lambda n: np.ones(int(n), [np.int32, np.float32][int(n)]))
    with pytest.raises(InvalidArgumentError, match="the same rank and type"):
        list(mixed.ragged_batch(2))


def test_iterators_in_the_middle_of_a_group_are_copied_and_pickled():
    grouped = (
        streamed(range(40))
        .window(3, 1, drop_remainder=True)
        .flat_map(lambda window: window.batch(3))
        .group_by_window(lambda x: x[0] % 3, lambda key, group: group.shuffle(4).batch(2), 4)
    )
    iterator = iter(grouped)
    for _ in range(3):
        next(iterator)
    copies = [copy.copy(iterator), cloudpickle.loads(cloudpickle.dumps(iterator))]
    rest = contents(iterator)
    assert len(rest) > 10
    assert [contents(each) for each in copies] == [rest, rest]
