"""What each worker of a cluster reads, for clusters that need no processes."""

import logging

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem._src.core.errors import InvalidArgumentError, NotFoundError
from stratagem._src.input import sharding
from stratagem._src.input.sharding import choose_policy, shard_for_worker
from stratagem._src.input.sources import as_source
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.input.worker_input import SplitSteps
from stratagem.data import Dataset, Options, TextLineDataset
from stratagem.data.experimental import SHARD_HINT, AutoShardPolicy


def with_policy(dataset, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def read(dataset, workers, replicas=1, state=None):
    """Returns for each worker, step and replica the rows it gets."""
    return [
        [step_rows(step, replicas) for step in shard_for_worker(
            dataset, WorkerPosition(workers, index, replicas))[0](state)]
        for index in range(workers)
    ]  # fmt: skip


def step_rows(step, replicas):
    if step.local_batch is not None:
        return [part.tolist() for part in np.split(jax.tree.leaves(step.local_batch)[0], replicas)]
    return [jax.tree.leaves(part)[0].tolist() for part in step.replica_batches]


@pytest.fixture
def two_files(tmp_path):
    for name, rows in (("a", range(4)), ("b", range(4, 8))):
        (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    names = Dataset.list_files(str(tmp_path / "*"), shuffle=False)
    return TextLineDataset(names).map(lambda line: np.int32(int(line)))


def test_data_policy_as_documented():
    dataset = with_policy(Dataset.range(8).batch(4), AutoShardPolicy.DATA)
    assert read(dataset, 2) == [[[[0, 1]], [[4, 5]]], [[[2, 3]], [[6, 7]]]]


def test_file_policy_as_documented(two_files):
    dataset = with_policy(two_files.batch(4), AutoShardPolicy.FILE)
    assert read(dataset, 2) == [[[[0, 1]], [[2, 3]]], [[[4, 5]], [[6, 7]]]]
    assert read(two_files.batch(4), 2) == read(dataset, 2)


def test_off_policy_as_documented():
    dataset = with_policy(Dataset.range(8).batch(4), AutoShardPolicy.OFF)
    everything = [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]
    assert read(dataset, 2) == [everything, everything]


def test_hint_policy():
    hinted = Dataset.range(8).shard(SHARD_HINT, SHARD_HINT).batch(4)
    assert read(with_policy(hinted, AutoShardPolicy.HINT), 2) == [
        [[[0, 2]], [[4, 6]]],
        [[[1, 3]], [[5, 7]]],
    ]
    plain = with_policy(Dataset.range(4).batch(4), AutoShardPolicy.HINT)
    assert read(plain, 2) == [[[[0, 1]], [[2, 3]]]] * 2


def test_a_batch_that_does_not_divide():
    dataset = with_policy(Dataset.range(14).batch(7), AutoShardPolicy.DATA)
    sizes = [
        [[len(part) for part in step] for step in worker] for worker in read(dataset, 2, replicas=2)
    ]
    assert sizes == [[[2, 2], [2, 1]], [[2, 1], [2, 2]]]


def test_auto_policy():
    auto, file, data = AutoShardPolicy.AUTO, AutoShardPolicy.FILE, AutoShardPolicy.DATA
    assert choose_policy(auto, 4, 2) is file
    assert choose_policy(auto, None, 2) is data
    assert choose_policy(AutoShardPolicy.OFF, None, 2) is AutoShardPolicy.OFF
    with pytest.raises(InvalidArgumentError, match="got 1 files and 2 workers"):
        choose_policy(auto, 1, 2)
    with pytest.raises(NotFoundError, match="reads files"):
        choose_policy(file, None, 2)


def test_the_warning_about_reading_everything_is_given_once_by_the_leader(caplog, monkeypatch):
    monkeypatch.setattr(sharding, "_warned", [])
    with caplog.at_level(logging.WARNING, logger="stratagem"):
        read(Dataset.range(4).batch(2), 1)
        assert not caplog.records
        read(Dataset.range(4).batch(2), 2)
        read(Dataset.range(4).batch(2), 2)
    [warning] = caplog.messages
    assert "every worker reads all of it" in warning


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 30),
    batch=st.integers(1, 9),
    workers=st.integers(1, 4),
    replicas=st.integers(1, 3),
)
def test_every_element_exactly_once_by_data(rows, batch, workers, replicas):
    dataset = with_policy(Dataset.range(rows).batch(batch), AutoShardPolicy.DATA)
    given_out = [
        row
        for worker in read(dataset, workers, replicas)
        for step in worker
        for r in step
        for row in r
    ]
    assert sorted(given_out) == list(range(rows))


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=3, max_size=5),
    batch=st.integers(1, 9),
    workers=st.integers(1, 3),
    replicas=st.integers(1, 3),
)
def test_every_element_exactly_once_by_file(tmp_path_factory, sizes, batch, workers, replicas):
    folder, number = tmp_path_factory.mktemp("files"), 0
    for name, size in enumerate(sizes):
        lines = [f"{number + k}\n" for k in range(size)]
        number += size
        (folder / str(name)).write_text("".join(lines))
    names = Dataset.list_files(str(folder / "*"), shuffle=False)
    dataset = TextLineDataset(names).map(lambda line: np.int32(int(line))).batch(batch)
    given_out = [
        row
        for worker in read(dataset, workers, replicas)
        for step in worker
        for r in step
        for row in r
    ]
    assert sorted(given_out) == list(range(number))


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    batch=st.integers(1, 7),
    workers=st.integers(1, 3),
    whole=st.booleans(),
)
def test_steps_resume_where_they_stood(data, batch, workers, whole):
    dataset = Dataset.range(20).shuffle(20, seed=3).batch(batch)
    source, position = as_source(dataset), WorkerPosition(workers, 0, 2)
    everything = list(SplitSteps(source, position, whole))
    stop = data.draw(st.integers(0, len(everything) - 1))
    resumed = SplitSteps(source, position, whole, everything[stop].state)
    assert resumed.state == everything[stop].state
    rest = [step_rows(step, 2) for step in resumed]
    assert rest == [step_rows(step, 2) for step in everything[stop + 1 :]]
