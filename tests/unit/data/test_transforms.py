from __future__ import annotations

import inspect

import numpy as np
import pytest

from stratagem._src.data.transforms.batch import num_batches
from stratagem.data import Dataset, InvalidArgumentError, Options, OutOfRangeError, TensorSpec
from stratagem.data.experimental import (
    INFINITE_CARDINALITY,
    SHARD_HINT,
    AutoShardPolicy,
    cardinality,
)

from .pipelines import chunks, contents, streamed


@pytest.mark.parametrize("make", [Dataset.range, lambda n: streamed(range(n))])
def test_interleave_is_tensorflows_documented_example(make):
    dataset = make(5).interleave(
        lambda x: Dataset.from_tensors(x + 1).repeat(6), cycle_length=2, block_length=4
    )
    expected = "1111 2222 11 22 3333 4444 33 44 5555 55"
    assert "".join(str(int(x)) for x in dataset) == expected.replace(" ", "")


@pytest.mark.parametrize("threads", [None, 1, 3, -1])
def test_parallel_interleave_has_the_same_order(threads):
    def build(num_parallel_calls):
        return Dataset.range(7).interleave(
            lambda x: streamed(range(int(x))), 3, 2, num_parallel_calls=num_parallel_calls
        )

    assert contents(build(threads)) == contents(build(None))


def test_flat_map_needs_a_dataset():
    with pytest.raises(InvalidArgumentError, match="map_func must be, or return, a Dataset"):
        contents(Dataset.range(2).flat_map(lambda x: x))


@pytest.mark.parametrize("size", range(12))
@pytest.mark.parametrize("sizes", [(1,), (4,), (2, 3), (5, 1, 1)])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_the_number_of_batches(size, sizes, drop_remainder):
    expected = chunks(list(range(size)), sizes, drop_remainder)
    assert num_batches(size, sizes, drop_remainder) == len(expected)


def test_batches_of_nests_and_of_batches():
    dataset = Dataset.from_tensor_slices({"x": np.arange(6), "y": np.eye(6)})
    (batch,) = dataset.batch(6)
    assert batch["y"].shape == (6, 6)
    (nested,) = dataset.batch(2).batch(3)
    assert nested["y"].shape == (3, 2, 6)
    assert nested["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert contents(dataset.batch(2).batch(3).unbatch().unbatch()) == contents(dataset)


def test_static_batch_shapes():
    dataset = Dataset.range(10)
    assert dataset.batch(4).element_spec.shape == (None,)
    assert dataset.batch(4, drop_remainder=True).element_spec.shape == (4,)
    assert dataset.batch(4, drop_remainder=True).unbatch().cardinality() == 8
    assert dataset.batch(4).rebatch([2, 3], drop_remainder=True).element_spec.shape == (None,)


@pytest.mark.parametrize("size", [0, -3, 2.0, "4", True])
def test_bad_batch_sizes(size):
    for make in (
        lambda: Dataset.range(3).batch(size),
        lambda: Dataset.range(3).padded_batch(size),
        lambda: Dataset.range(3).rebatch([2, size or -1]),
    ):
        with pytest.raises(InvalidArgumentError, match="batch_size must be"):
            make()


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([[1, 2], [3]], r"same shape.*\(2,\).*1 elements later.*\(1,\).*Use padded_batch"),
        ([np.float32(1), np.int32(1)], "float32.*int32"),
        ([b"a", 1], "same shape and type"),
        ([(1, 2), (1,)], r"same structure, got \(\*, \*\) and, 1 elements later, \(\*,\)"),
        ([{"a": [1]}, {"a": [1, 2]}], r"in component \['a'\]"),
    ],
)
def test_elements_that_differ_in_a_batch(elements, message):
    remaining = list(elements)
    dataset = Dataset.range(2).map(lambda i: remaining[int(i)])
    with pytest.raises(InvalidArgumentError, match=message):
        contents(dataset.batch(2))


def test_rows_that_cannot_be_unbatched():
    with pytest.raises(InvalidArgumentError, match="same leading dimension"):
        contents(Dataset.from_tensors(([1, 2], [3])).unbatch())
    with pytest.raises(InvalidArgumentError, match="same leading dimension"):
        contents(Dataset.range(3).unbatch())


def ragged():
    return Dataset.range(1, 5).map(lambda n: (np.arange(int(n)), str(int(n)) * int(n)))


def test_padded_batch_pads_to_the_longest_of_its_batch():
    first, second = ragged().padded_batch(2)
    assert first[0].tolist() == [[0, 0], [0, 1]]
    assert second[0].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert second[1].tolist() == [b"333", b"4444"]


def test_padded_batch_with_shapes_and_values():
    dataset = ragged().padded_batch(3, ([5], []), (-1, ""), drop_remainder=True)
    (batch,) = dataset
    assert batch[0].tolist() == [[0, -1, -1, -1, -1], [0, 1, -1, -1, -1], [0, 1, 2, -1, -1]]
    assert dataset.element_spec[0] == TensorSpec([3, 5], np.int64)
    numbers = Dataset.range(3).padded_batch(2, [])
    assert contents(numbers) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (([2], []), "at least as large"),
        (([2, 2], []), "at least as large"),
        ([5], "one entry per component"),
    ],
)
def test_bad_padded_shapes(shapes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        contents(ragged().padded_batch(4, shapes))


@pytest.mark.parametrize(("num_shards", "index"), [(2, 2), (2, -1), (0, 0), (-1, 0)])
def test_bad_shards(num_shards, index):
    with pytest.raises(InvalidArgumentError, match=r"num_shards"):
        Dataset.range(3).shard(num_shards, index)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_shard_keeps_its_place_after_an_error(index):
    def fail(x):
        if int(x) < 3:
            raise ZeroDivisionError
        return int(x)

    iterator = iter(streamed(range(9)).map(fail).shard(3, index))
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert contents(iterator) == [3 + index, 6 + index]


def test_filter_needs_one_bool():
    assert contents(Dataset.range(6).filter(lambda x: x > 3)) == [4, 5]
    with pytest.raises(InvalidArgumentError, match="must return one bool"):
        contents(Dataset.range(6).filter(lambda x: x))


def test_zip_of_nests_and_of_arguments():
    a, b = Dataset.range(3), Dataset.range(10, 20)
    assert contents(Dataset.zip(a, b)) == [(0, 10), (1, 11), (2, 12)]
    assert contents(Dataset.zip({"a": a, "b": (b,)}).take(1)) == [{"a": 0, "b": (10,)}]
    assert Dataset.zip((a, b.repeat())).cardinality() == 3
    with pytest.raises(InvalidArgumentError, match="must be, or return, a Dataset"):
        Dataset.zip((a, [1]))


def test_zipped_arrays_stay_together_when_shuffled():
    zipped = Dataset.zip((Dataset.range(50), Dataset.range(50).map(lambda x: x * x)))
    for x, y in zipped.shuffle(50).batch(9):
        np.testing.assert_array_equal(x * x, y)


def test_concatenate_needs_the_same_kind():
    joined = Dataset.from_tensor_slices(np.eye(2)).concatenate(
        Dataset.from_tensor_slices(np.zeros((1, 3)))
    )
    assert joined.element_spec.shape == (None,)
    with pytest.raises(InvalidArgumentError, match="same types"):
        _ = Dataset.range(2).concatenate(Dataset.from_tensor_slices([1.0])).element_spec
    with pytest.raises(InvalidArgumentError, match="same structure"):
        _ = Dataset.range(2).concatenate(Dataset.range(2).enumerate()).element_spec


def test_concatenated_tables_shuffle_as_one():
    a = Dataset.from_tensor_slices(np.arange(10).reshape(5, 2))
    b = Dataset.from_tensor_slices(np.arange(10, 16).reshape(3, 2))
    rows = np.concatenate(list(a.concatenate(b).shuffle(8, seed=2).batch(3)))
    assert rows.tolist() != sorted(rows.tolist())
    assert sorted(rows.tolist()) == np.arange(16).reshape(8, 2).tolist()


def test_reduce_and_apply():
    total = Dataset.range(5).reduce((0, 1.0), lambda state, x: (state[0] + x, state[1] * 2))
    assert total == (10, 32.0)
    with pytest.raises(InvalidArgumentError, match="state like the initial one"):
        Dataset.range(5).reduce(0, lambda state, x: (state, x))
    with pytest.raises(InvalidArgumentError, match="Dataset"):
        Dataset.range(5).apply(lambda dataset: 3)


def test_repeating_nothing_ends():
    assert contents(Dataset.range(0).repeat()) == []
    assert contents(streamed([]).repeat().batch(2)) == []


def test_options_are_merged_along_the_plan():
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    later = Options(deterministic=False)
    later.experimental_distribute.num_devices = 4
    dataset = Dataset.range(5).with_options(options).batch(2).with_options(later).prefetch(1)
    found = dataset.options()
    assert found.experimental_distribute.auto_shard_policy is AutoShardPolicy.DATA
    assert found.experimental_distribute.num_devices == 4
    assert found.deterministic is False
    assert contents(dataset) == [[0, 1], [2, 3], [4]]
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    assert dataset.options().experimental_distribute.auto_shard_policy is AutoShardPolicy.DATA


@pytest.mark.parametrize(
    ("name", "value"), [("auto_shard_policy", "DATA"), ("num_devices", 0), ("auto_shard", True)]
)
def test_bad_distribute_options(name, value):
    with pytest.raises(InvalidArgumentError, match=name):
        setattr(Options().experimental_distribute, name, value)


def test_bad_options():
    with pytest.raises(InvalidArgumentError, match="has no option 'determinstic'"):
        Options().determinstic = True
    with pytest.raises(InvalidArgumentError, match="deterministic must be"):
        Options(deterministic="yes")
    with pytest.raises(InvalidArgumentError, match="options must be an Options"):
        Dataset.range(3).with_options({})


def test_the_end_of_an_iterator():
    iterator = iter(Dataset.range(1))
    assert iterator.get_next() == 0
    with pytest.raises(OutOfRangeError, match="End of the dataset"):
        iterator.get_next()


def test_the_state_of_another_pipeline_is_refused():
    state = iter(Dataset.range(5).batch(2)).get_state()
    with pytest.raises(InvalidArgumentError, match=r"saved from Batch\(Range\[5\]\), this is"):
        iter(Dataset.range(5)).set_state(state)
    with pytest.raises(InvalidArgumentError, match="what get_state"):
        iter(Dataset.range(5)).set_state(3)


def test_a_closed_iterator_is_at_its_end():
    iterator = iter(Dataset.range(5))
    next(iterator)
    iterator.close()
    assert list(iterator) == []


def test_an_iterator_can_be_restored_in_the_middle_of_its_life():
    iterator = iter(Dataset.range(9).shuffle(9, seed=1).prefetch(2))
    first = next(iterator)
    state = iterator.get_state()
    rest = contents(iterator)
    iterator.set_state(state)
    assert contents(iterator) == rest
    assert sorted([int(first), *rest]) == list(range(9))


@pytest.mark.parametrize(
    ("count", "sizes", "drop_remainder", "expected"),
    [
        (3, [1, 0], False, [[0], [], [1], [], [2], []]),
        (8, [2, 0, 1], False, [[0, 1], [], [2], [3, 4], [], [5], [6, 7], []]),
        (8, [2, 0, 1], True, [[0, 1], [], [2], [3, 4], [], [5], [6, 7], []]),
        (5, [2, 0], True, [[0, 1], [], [2, 3], []]),
        (5, [0, 2], False, [[], [0, 1], [], [2, 3], [], [4]]),
        (4, [0, 2], False, [[], [0, 1], [], [2, 3], []]),
    ],
)
@pytest.mark.parametrize("source", [Dataset.range, lambda n: streamed(range(n))])
def test_rebatching_into_batches_without_rows(source, count, sizes, drop_remainder, expected):
    dataset = source(count).batch(4).rebatch(sizes, drop_remainder)
    assert contents(dataset) == expected
    assert dataset.cardinality() == -2
    iterator = iter(dataset)
    next(iterator), next(iterator)
    resumed = iter(dataset)
    resumed.set_state(iterator.get_state())
    assert contents(resumed) == expected[2:]
    assert contents(dataset.skip(3)) == expected[3:]


def test_batches_without_rows_have_the_shapes_of_others():
    dataset = Dataset.from_tensors((np.ones((4, 3), np.float32), [b"a"] * 4)).rebatch([4, 0])
    _, (numbers, text) = dataset
    assert (numbers.shape, numbers.dtype, text.shape) == ((0, 3), np.float32, (0,))
    endless = iter(Dataset.range(4).batch(2).rebatch(0))
    assert [next(endless).shape for _ in range(3)] == [(0,)] * 3


@pytest.mark.parametrize(
    ("drop_first", "sizes", "drop_last", "rows"),
    [
        (True, 4, False, 4), (True, 2, False, 2), (True, [2, 2], False, 2), (True, 3, False, None),
        (True, 8, False, None), (True, [2, 1], False, None), (False, 2, False, None),
        (False, 3, True, 3), (True, [2, 1], True, None), (True, [0], False, None),
    ],
)  # fmt: skip
def test_static_shapes_after_rebatch(drop_first, sizes, drop_last, rows):
    dataset = Dataset.range(8).batch(4, drop_first).rebatch(sizes, drop_last)
    assert dataset.element_spec.shape == (rows,)


def test_names():
    dataset = Dataset.range(4, name="numbers").map(lambda x: x + 1, name="plus_one")
    assert repr(dataset) == "<Dataset 'plus_one': Map(Range[4])>"
    assert contents(dataset.batch(2, name="pairs").prefetch(1, name="ahead")) == [[1, 2], [3, 4]]
    for bad in ("a b", "1st", 5, ""):
        with pytest.raises(InvalidArgumentError, match="name must be an identifier"):
            Dataset.range(4).take(1, name=bad)


def test_every_method_takes_a_name():
    methods = {
        name: inspect.signature(getattr(Dataset, name))
        for name in dir(Dataset)
        if not name.startswith("_") and callable(getattr(Dataset, name))
    }
    without = {name for name, signature in methods.items() if "name" not in signature.parameters}
    assert without == {
        "apply",
        "as_numpy_iterator",
        "cardinality",
        "choose_from_datasets",
        "fingerprint",
        "load",
        "options",
        "sample_from_datasets",
        "save",
    }


def test_a_shard_hint_is_not_ignored():
    hinted = Dataset.range(6).shard(SHARD_HINT, SHARD_HINT).map(lambda x: x + 1).batch(2)
    assert hinted.element_spec.shape == (None,)
    with pytest.raises(RuntimeError, match=r"AutoShardPolicy\.HINT"):
        iter(hinted)
    with pytest.raises(InvalidArgumentError, match="index"):
        Dataset.range(6).shard(2, SHARD_HINT)


def test_arguments_that_tf_data_has():
    pair = (Dataset.range(2), Dataset.range(5, 7))
    assert contents(Dataset.zip(datasets=pair)) == [(0, 5), (1, 6)]
    with pytest.raises(InvalidArgumentError, match="got both"):
        Dataset.zip(pair[0], datasets=pair)
    doubled = Dataset.range(2).map(
        lambda x: x * 2, synchronous=True, use_unbounded_threadpool=True, name="doubled"
    )
    assert contents(doubled) == [0, 2]
    with pytest.raises(InvalidArgumentError, match="num_parallel_calls must be None, got 2"):
        Dataset.range(2).map(lambda x: x, 2, synchronous=True)


def test_options_take_their_former_names():
    options = Options()
    options.experimental_deterministic = False
    options.experimental_slack = True
    options.autotune.enabled = options.threading.private_threadpool_size = 1
    merged = Dataset.range(3).with_options(options).with_options(Options()).options()
    assert (merged.deterministic, merged.experimental_deterministic) == (False, False)
    assert merged.experimental_slack
    with pytest.raises(InvalidArgumentError, match="experimental_slack must be None or a bool"):
        options.experimental_slack = 1


def test_a_cardinality_is_a_number_with_numpy():
    three = Dataset.range(3).cardinality()
    assert (three, f"{three:02d} {three}", list(range(three))) == (3, "03 3", [0, 1, 2])
    assert (three.numpy(), three.numpy().dtype) == (3, np.int64)
    endless = cardinality(Dataset.range(3).repeat())
    assert endless == endless.numpy() == INFINITE_CARDINALITY
