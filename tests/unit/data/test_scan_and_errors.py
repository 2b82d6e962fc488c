"""Steps that remember, end early or pass over errors; the expected values are what tf.data gives."""

from __future__ import annotations

import collections
import logging

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.data import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
    InvalidArgumentError,
    NotFoundError,
    TensorSpec,
    TextLineDataset,
    TFRecordDataset,
)
from stratagem.data.experimental import assert_cardinality
from stratagem.io import TFRecordWriter

from .pipelines import contents, not_five, streamed


def test_scan():
    dataset = Dataset.range(10).scan(np.int64(0), lambda total, x: (total + x, total * 2))
    assert contents(dataset) == [0, 0, 2, 6, 12, 20, 30, 42, 56, 72]
    assert contents(dataset.batch(4).take(1)) == [[0, 0, 2, 6]]
    assert dataset.cardinality() == 10
    assert dataset.element_spec == TensorSpec((), "int64")


def test_scan_passes_elements_in_one_piece_and_keeps_structures():
    pair = collections.namedtuple("Pair", "total text")
    rows = Dataset.from_tensor_slices((np.arange(3), list("abc")))

    def joined(state, element):
        number, letter = element
        return pair(state.total + number, state.text + letter), {"sum": state.total, "n": number}

    scanned = rows.scan(pair(np.int64(5), ""), joined)
    assert contents(scanned) == [{"sum": 5, "n": 0}, {"sum": 5, "n": 1}, {"sum": 6, "n": 2}]


def test_a_state_may_grow_and_be_of_jax():
    grown = Dataset.range(3).scan(np.zeros(0, np.int64), lambda seen, x: (np.append(seen, x), seen))
    assert contents(grown) == [[], [0], [0, 1]]
    means = Dataset.from_tensor_slices([1.0, 3.0]).scan(
        0.0, lambda mean, x: (jnp.add(mean, x) / 2, jnp.add(mean, x) / 2)
    )
    assert contents(means) == [0.5, 1.75]


@pytest.mark.parametrize(
    ("initial", "function", "message"),
    [
        (0, lambda s, x: (s + x, s), "of the types of the initial one, got .*int64.* for .*int32"),
        (0, lambda s, x: s, "must return a pair, the new state and the output"),
        ((0, 1), lambda s, x: (s[0], x), "a state like the initial one"),
        (0, 3, "scan_func must be callable, got 3"),
    ],
    ids=["type", "no pair", "structure", "no function"],
)
def test_bad_scans(initial, function, message):
    with pytest.raises(InvalidArgumentError, match=message):
        list(Dataset.range(3).scan(initial, function))


def test_take_while_ends_for_good():
    numbers = Dataset.from_tensor_slices(np.array([1, 2, 9, 3]))
    taken = numbers.take_while(lambda x: x < 5)
    assert contents(taken) == [1, 2]
    assert contents(taken.repeat(2)) == [1, 2, 1, 2]
    assert contents(taken.batch(3)) == [[1, 2]]
    assert taken.cardinality() == UNKNOWN_CARDINALITY
    assert contents(Dataset.counter().take_while(lambda x: x < 3)) == [0, 1, 2]
    with pytest.raises(InvalidArgumentError, match="predicate of take_while must return one bool"):
        list(numbers.take_while(lambda x: x))


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (np.array([1, 37, 2, 37, 2, 1]), [1, 37, 2]),
        (["a", "b", "a", ""], [b"a", b"b", b""]),
        ([[1, 2], [1, 3], [1, 2]], [[1, 2], [1, 3]]),
        ([["a", "bc"], ["ab", "c"]], [[b"a", b"bc"], [b"ab", b"c"]]),
        ((np.array([1, 1, 1]), [True, False, True]), [(1, True), (1, False)]),
    ],
    ids=["numbers", "texts", "vectors", "texts in vectors", "pairs"],
)
def test_unique(elements, expected):
    unique = Dataset.from_tensor_slices(elements).unique()
    assert contents(unique) == expected
    assert contents(unique.repeat(2)) == expected * 2
    assert unique.cardinality() == UNKNOWN_CARDINALITY


def test_floats_are_not_compared():
    with pytest.raises(InvalidArgumentError, match=r"integers, bools and strings, got .*float32"):
        list(Dataset.from_tensor_slices([1.0, 2.0]).unique())


def test_the_single_element():
    assert Dataset.range(1).get_single_element() == 0
    with pytest.raises(InvalidArgumentError, match="one element, but this one has none"):
        Dataset.range(0).get_single_element()
    with pytest.raises(InvalidArgumentError, match="one element, but this one has more than one"):
        Dataset.counter().get_single_element()


def test_errors_are_left_out_and_logged(caplog):
    numbers = streamed(range(12)).map(not_five)
    with caplog.at_level(logging.WARNING, "stratagem"):
        assert contents(numbers.ignore_errors()) == [1, 2, 3, 4, 6, 7, 8, 9, 11]
        assert not caplog.records
        assert len(contents(numbers.ignore_errors(log_warning=True))) == 9
    assert [record.getMessage() for record in caplog.records] == [
        "Skipped an element: ValueError: five"
    ] * 3
    assert numbers.ignore_errors().cardinality() == UNKNOWN_CARDINALITY


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda d: d.prefetch(4), [1, 2, 3, 4, 6, 7, 8, 9, 11]),
        (lambda d: d.map(lambda x: int(x), 3), [1, 2, 3, 4, 6, 7, 8, 9, 11]),
        (lambda d: d.batch(2), [[2, 3], [6, 7], [8, 9]]),
        (lambda d: d.repeat(2).skip(1).take(12), [1, 2, 3, 4, 6, 7, 8, 9, 11]),
        (lambda d: Dataset.zip(d, Dataset.counter()).map(lambda x, i: x), None),
        (lambda d: d.concatenate(d), [1, 2, 3, 4, 6, 7, 8, 9, 11] * 2),
        (
            lambda d: d.interleave(lambda x: Dataset.from_tensors(x), 2),
            [1, 2, 3, 4, 6, 7, 8, 9, 11],
        ),
        (lambda d: d.cache(), [1, 2, 3, 4, 6, 7, 8, 9, 11]),
    ],
    ids=[
        "prefetch",
        "parallel map",
        "batch",
        "repeat",
        "zip",
        "concatenate",
        "interleave",
        "cache",
    ],
)
def test_errors_below_other_steps_are_left_out(build, expected):
    dataset = build(streamed(range(12)).map(not_five)).ignore_errors()
    found = contents(dataset)
    assert found == (expected or [1, 2, 3, 4, 6, 7, 8, 9, 11])


def test_an_error_without_end_is_raised():
    class Broken:
        def __iter__(self):
            return self

        def __next__(self):
            raise OSError("disk on fire")

    dataset = Dataset.from_generator(Broken, output_signature=TensorSpec((), "int32"))
    with pytest.raises(OSError, match="disk on fire"):
        list(dataset.ignore_errors())


@pytest.mark.parametrize("read_ahead", [False, True])
@pytest.mark.parametrize("kind", ["corrupt", "truncated", "missing"])
def test_after_a_broken_file_the_next_is_read(tmp_path, kind, read_ahead):
    for name in "abc":
        with TFRecordWriter(tmp_path / name) as writer:
            for number in range(3):
                writer.write(f"{name}{number}".encode())
    broken = tmp_path / "b"
    data = bytearray(broken.read_bytes())
    data[18 + 12] ^= 1
    content = {"corrupt": bytes(data), "truncated": bytes(data[:20])}
    if kind == "missing":
        broken.unlink()
    else:
        broken.write_bytes(content[kind])
    records = TFRecordDataset([tmp_path / name for name in "abc"])
    if read_ahead:
        records = records.prefetch(3)
    ignoring = records.ignore_errors()
    whole = [b"a0", b"a1", b"a2", *([] if kind == "missing" else [b"b0"]), b"c0", b"c1", b"c2"]
    assert contents(ignoring) == whole
    iterator = iter(ignoring)
    for position in range(len(whole)):
        state = iterator.get_state()
        assert next(iterator) == whole[position]
        restored = iter(ignoring)
        restored.set_state(state)
        assert contents(restored) == whole[position:]


def test_after_a_missing_text_file_the_next_is_read(tmp_path):
    (tmp_path / "b").write_text("x\ny\n")
    lines = TextLineDataset([tmp_path / "a", tmp_path / "b"])
    assert contents(lines.ignore_errors()) == [b"x", b"y"]
    with pytest.raises(NotFoundError):
        list(lines)


def test_asserted_cardinality():
    evens = Dataset.range(10).filter(lambda x: x % 2 == 0)
    assert len(evens.apply(assert_cardinality(5))) == 5
    assert contents(evens.apply(assert_cardinality(5))) == [0, 2, 4, 6, 8]
    with pytest.raises(InvalidArgumentError, match="to have 6 elements, but has only 5"):
        list(evens.apply(assert_cardinality(6)))
    with pytest.raises(InvalidArgumentError, match="to have 4 elements, but has at least 5"):
        list(evens.apply(assert_cardinality(4)))
    endless = evens.apply(assert_cardinality(INFINITE_CARDINALITY))
    with pytest.raises(InvalidArgumentError, match="infinitely many elements, but has only 5"):
        list(endless)
