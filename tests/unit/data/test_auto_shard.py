from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.data import (
    Dataset,
    InvalidArgumentError,
    NotFoundError,
    TextLineDataset,
    num_files,
    seed_shuffles,
    shard_at_hints,
    shard_by_data,
    shard_by_file,
)
from stratagem.data.experimental import SHARD_HINT
from stratagem.io import TFRecordWriter

from .pipelines import contents, streamed


@pytest.fixture
def files(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"{number}a\n{number}b\n")
    return tmp_path


def pipelines(folder):
    pattern, names = str(folder / "*.txt"), sorted(str(path) for path in folder.glob("*.txt"))
    return {
        "names": TextLineDataset(names),
        "parallel": TextLineDataset(names, num_parallel_reads=2).shuffle(3),
        "shuffled names": TextLineDataset(Dataset.list_files(pattern)),
        "interleave": Dataset.list_files(pattern).interleave(TextLineDataset, 2).batch(3).unbatch(),
        "flat_map": Dataset.from_tensor_slices(names).flat_map(lambda name: TextLineDataset(name)),
        "zip": Dataset.zip((TextLineDataset(names), Dataset.range(99))).map(lambda line, _: line),
        "cached": TextLineDataset(names).cache().shuffle(20),
    }


@pytest.mark.parametrize(
    "name",
    ["names", "parallel", "shuffled names", "interleave", "flat_map", "zip", "cached"],
)
@pytest.mark.parametrize("num_shards", [1, 2, 3, 5])
def test_file_shards_are_disjoint_and_complete(files, name, num_shards):
    dataset = pipelines(files)[name]
    assert num_files(dataset) == 5
    shards = [contents(shard_by_file(dataset, num_shards, index)) for index in range(num_shards)]
    lines = [line for shard in shards for line in shard]
    assert sorted(lines) == sorted(f"{n}{letter}".encode() for n in range(5) for letter in "ab")
    for index, shard in enumerate(shards):
        assert {int(line[:1]) % num_shards for line in shard} == {index}


def test_the_original_is_not_changed(files):
    dataset = pipelines(files)["cached"]
    assert len(contents(dataset)) == 10
    assert len(contents(shard_by_file(dataset, 5, 0))) == 2
    assert len(contents(dataset)) == 10


def test_repeated_names_are_counted_once(files):
    names = Dataset.list_files(str(files / "*.txt")).repeat().map(lambda name: name)
    assert num_files(TextLineDataset(names)) == 5
    assert num_files(TextLineDataset(names.filter(lambda name: True))) == sys.maxsize
    seen = contents(shard_by_file(TextLineDataset(names), 5, 3).take(6))
    assert seen == [b"3a", b"3b"] * 3


def test_filtered_names_are_counted(files):
    names = Dataset.list_files(str(files / "*.txt")).filter(lambda name: b"3.txt" not in name)
    assert num_files(TextLineDataset(names)) == 4


def test_names_that_are_read_from_a_file_are_sharded_not_that_file(files):
    names = sorted(str(path) for path in files.glob("*.txt"))
    (files / "manifest").write_text("\n".join(names))
    dataset = TextLineDataset(TextLineDataset(files / "manifest"))
    assert num_files(dataset) == 5
    shards = [contents(shard_by_file(dataset, 2, index)) for index in range(2)]
    assert shards[1] == [b"1a", b"1b", b"3a", b"3b"]
    assert len(shards[0]) == 6


@pytest.mark.parametrize("memory", [True, False])
def test_workers_that_agree_on_a_seed_shuffle_alike(memory):
    def build():
        source = Dataset.range(40) if memory else streamed(range(40))
        nested = source.batch(8).flat_map(
            lambda batch: Dataset.from_tensor_slices(batch).shuffle(8)
        )
        return nested.shuffle(40).batch(4).shuffle(5)

    for epoch_seed in (0, 1):
        workers = [shard_by_data(seed_shuffles(build(), epoch_seed), 3, i) for i in range(3)]
        batches = [batch for worker in workers for batch in contents(worker)]
        assert sorted(number for batch in batches for number in batch) == list(range(40))
    assert contents(seed_shuffles(build(), 0)) != contents(seed_shuffles(build(), 1))


def test_a_seed_that_was_given_is_kept():
    seeded = Dataset.range(20).shuffle(20, seed=5)
    assert contents(seed_shuffles(Dataset.range(20).shuffle(20, seed=5), 9)) == contents(seeded)


def test_hints_say_where_to_shard():
    dataset = Dataset.range(8).shard(SHARD_HINT, SHARD_HINT).map(lambda x: x * 10).batch(2)
    assert contents(shard_at_hints(dataset, 1, 0)) == [[0, 10], [20, 30], [40, 50], [60, 70]]
    assert contents(shard_at_hints(dataset, 4, 1)) == [[10, 50]]
    assert contents(shard_at_hints(Dataset.range(3), 4, 1)) == [0, 1, 2]


def test_a_dataset_without_files():
    assert num_files(Dataset.range(4).flat_map(Dataset.range)) is None
    with pytest.raises(NotFoundError, match=r"Interleave.*Use AutoShardPolicy.DATA"):
        shard_by_file(Dataset.range(4).flat_map(Dataset.range), 2, 0)


def test_bad_shards(tmp_path):
    with TFRecordWriter(tmp_path / "file") as writer:
        writer.write(b"x")
    with pytest.raises(InvalidArgumentError, match="index must be in"):
        shard_by_file(TextLineDataset(tmp_path / "file"), 2, 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 6), st.integers(1, 50), st.booleans())
def test_data_shards_are_disjoint_and_complete(size, num_shards, batch_size, buffer_size, memory):
    source = Dataset.range(size) if memory else streamed(range(size))
    dataset = source.shuffle(buffer_size, seed=4).batch(batch_size)
    for _ in range(2):
        shards = [shard_by_data(dataset, num_shards, index) for index in range(num_shards)]
        batches = [batch for shard in shards for batch in contents(shard)]
        assert sorted(number for batch in batches for number in batch) == list(range(size))


def test_data_shards_agree_on_every_epoch():
    dataset = Dataset.range(10).shuffle(10, seed=4)
    shards = [shard_by_data(dataset, 2, index) for index in range(2)]
    for _ in range(3):
        assert sorted(contents(shards[0]) + contents(shards[1])) == list(range(10))
